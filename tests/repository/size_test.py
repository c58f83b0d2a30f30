"""Tests that the repository stays within its ceilings of size."""

import json
import pathlib
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from tools import measure_size

_SOURCE = '''"""Title."""

import os  # A comment.


def f(x):
    """Docstring."""
    return os.path.join(
        x,
        "y",
    )
'''


class SizeTest(tf.test.TestCase):
    def test_no_folder_passes_its_ceiling(self):
        limits = measure_size.ceilings()
        excess = [
            f"{folder} has {value - limits[folder][unit]:,} {unit} more than "
            f"its ceiling of {limits[folder][unit]:,}"
            for folder, size in measure_size.measure().items()
            for unit, value in size.items()
            if value > limits[folder][unit]
        ]
        self.assertEmpty(
            excess,
            "Take something out, or raise the ceiling with a reason in "
            f"{measure_size.CEILINGS.name} (see CONTRIBUTING.md).",
        )

    def test_small_modules_have_two_importers_and_none_is_long(self):
        contents = json.loads(measure_size.CEILINGS.read_text("utf-8"))
        for rule, modules in measure_size.exceptional_modules().items():
            # Equal, so an entry that is no longer an exception must go.
            self.assertEqual(modules, contents[rule], rule)


class MeasureTest(tf.test.TestCase, parameterized.TestCase):
    def test_tokens_are_those_of_code(self):
        # import os; def f ( x ) :; return os . path . join ( x , "y" , )
        self.assertEqual(measure_size.count_tokens(_SOURCE), 2 + 6 + 12)

    @parameterized.parameters(
        (_SOURCE.replace('    """Docstring."""\n', ""), 0),
        (_SOURCE.replace("  # A comment.", ""), 0),
        (_SOURCE.replace("\n        x,\n", " x,"), 0),
        (_SOURCE.replace('"y",', '"y"'), -1),
    )
    def test_tokens_do_not_count_form(self, source, difference):
        self.assertEqual(
            measure_size.count_tokens(source),
            measure_size.count_tokens(_SOURCE) + difference,
        )

    def test_raising_a_ceiling_needs_a_reason(self):
        entry = {"folder": "docs", "words": 300, "reason": "A new guide."}
        contents = {"ceilings": {"docs": {"words": 1000}}, "raised": [entry]}
        path = pathlib.Path(self.create_tempfile("size.json").full_path)
        path.write_text(json.dumps(contents))
        with mock.patch.object(measure_size, "CEILINGS", path):
            self.assertEqual(measure_size.ceilings(), {"docs": {"words": 1300}})
            entry["reason"] = " "
            path.write_text(json.dumps(contents))
            with self.assertRaisesRegex(ValueError, "no reason"):
                measure_size.ceilings()


if __name__ == "__main__":
    tf.test.main()
