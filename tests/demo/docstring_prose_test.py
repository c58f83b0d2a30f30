from absl.testing import absltest
from absl.testing import parameterized

from bert_tf.demo import docstring_prose

_GOOGLE = """Computes the mean of all the elements of a tensor.

    The tensor is reduced along the given axes, as in `numpy.mean`, see
    [the guide](https://www.example.org/a_b) for **more** about it:

    ```python
    x = mean(tensor)  # This comment is code and ends with a full stop.
    ```

    >>> mean([1, 2])  # A doctest is not prose, whatever it may say here.
    1.5
    This line is still the output of the doctest above it, really.

    Args:
      axis: The axis to reduce, which may be negative
        and counts from the end in that case.
      keepdims: Whether the reduced axis stays in the result.
      **kwargs: Further arguments that go to the layer below.
      name (optional): A name for the operation that does this.

    Returns:
      A tensor with the same type as the input tensor has.

    Raises:
      ValueError: If there is no such axis in the tensor.
    """

_NUMPY = """
    Return the sum of the elements over a given axis.

    .. versionadded:: 1.7.0
       This text says since when and is not worth having here.

    .. note:: Short.
       Under a note there is text that is worth having after all.

    Parameters
    ----------
    a : array_like
        Elements to sum up, in whatever order they may come.
    axis : None or int, optional
        The axis along which the :func:`~numpy.sum` is performed.

    Notes
    -----
    The sum is that of :ref:`the guide <arithmetic>`, and `its text
    <http://example.org>`_ explains it in *all* detail [1]_::

        code = sum(a) that is indented is not a sentence, it is code.

            deeper = still the same block of code, even after a blank.

    After the block the text goes on with one more sentence.

    * The first item of a list is a paragraph of its own.
    * The second item goes on
      in the next line and is one paragraph too.

    :param flag: Whether the fields of Sphinx are read as well.
    :return: The result of all this in the end, of course.
    """


class ExtractParagraphsTest(parameterized.TestCase):
    def test_google_convention(self):
        self.assertEqual(
            docstring_prose.extract_paragraphs(_GOOGLE),
            [
                "Computes the mean of all the elements of a tensor.",
                "The tensor is reduced along the given axes, as in numpy.mean, "
                "see the guide for more about it:",
                "axis: The axis to reduce, which may be negative and counts "
                "from the end in that case.",
                "keepdims: Whether the reduced axis stays in the result.",
                "**kwargs: Further arguments that go to the layer below.",
                "name (optional): A name for the operation that does this.",
                "A tensor with the same type as the input tensor has.",
                "ValueError: If there is no such axis in the tensor.",
            ],
        )

    def test_numpy_and_sphinx_conventions(self):
        self.assertEqual(
            docstring_prose.extract_paragraphs(_NUMPY),
            [
                "Return the sum of the elements over a given axis.",
                "Under a note there is text that is worth having after all.",
                "Elements to sum up, in whatever order they may come.",
                "The axis along which the sum is performed.",
                "The sum is that of the guide, and its text explains it in all "
                "detail :",
                "After the block the text goes on with one more sentence.",
                "The first item of a list is a paragraph of its own.",
                "The second item goes on in the next line and is one "
                "paragraph too.",
                "flag: Whether the fields of Sphinx are read as well.",
                "The result of all this in the end, of course.",
            ],
        )

    def test_titles_and_tables_go(self):
        text = """# A title of Markdown that has a full stop in it.

        An underlined title that has many words
        ***************************************

        | a table | has cells | with words in it and ends with a stop. |
        +---------+-----------+

        What remains is this one sentence of prose."""
        self.assertEqual(
            docstring_prose.extract_paragraphs(text),
            ["What remains is this one sentence of prose."],
        )

    @parameterized.parameters(
        ("The mean of the elements, or None if there are none.", True),
        ("It is read first. (And is written last, as the others are.)", True),
        ("Too short for use.", False),
        ("There is no sentence end in this whole title", False),
        ("if x.y(z): return self.a[b] = {c: d} or e(f) in g.", False),
        ("1.0, 2.0, 3.0, four, five, six, seven, eight, 9.0, 10.0.", False),
    )
    def test_is_prose(self, text, expected):
        self.assertEqual(docstring_prose.is_prose(text), expected)


if __name__ == "__main__":
    absltest.main()
