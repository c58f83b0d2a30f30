"""Fuzz tests: JSON readers return the document or raise a one-line error."""

import json

import tensorflow as tf
from hypothesis import strategies as st

from bert_tf.errors import UserError
from bert_tf.io import stored_files
from bert_tf.serving import json_values
from bert_tf.serving.errors import RequestError
from tests.support import fuzzing

_DOCUMENT = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
_READERS = (
    lambda contents: stored_files.parse_json(contents, "x.json"),
    json_values.parse,
)


class JsonFuzzTest(tf.test.TestCase):
    def test_documents_survive_every_reader(self):
        @fuzzing.run(40, st.dictionaries(st.text(), _DOCUMENT, max_size=4))
        def check(document):
            contents = json.dumps(document).encode()
            for read in _READERS:
                self.assertEqual(read(contents), document)

    def test_changed_documents_are_read_or_refused(self):
        @fuzzing.run(
            40,
            fuzzing.RANDOM,
            st.dictionaries(st.text(), _DOCUMENT, min_size=1, max_size=4),
        )
        def check(rng, document):
            contents = json.dumps(document, ensure_ascii=False).encode()
            if rng.randrange(2):
                contents, _ = fuzzing.mutate_json(rng, contents)
            else:
                contents = fuzzing.mutate_bytes(rng, contents)
            for read in _READERS:
                try:
                    json.dumps(read(contents))
                except (RequestError, UserError) as error:
                    self.assertNotIn("\n", str(error))
                    self.assertLess(len(str(error)), 1000)


if __name__ == "__main__":
    tf.test.main()
