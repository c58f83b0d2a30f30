"""Servers for the fuzz tests: a toy, and a classifier for each engine."""

import contextlib
import os
import tempfile

from tests.support import made_once
from tests.support import tiny_exports
from tests.support import toy_models

ENGINES = ("savedmodel", "litert")
# Signatures of the toy and of an exported classifier, and missing ones.
SIGNATURES = (
    *("serving_default", "echo", "log", "total", "share"),
    *("classify", "regress", "nix", "", "__saved_model_init_op"),
    *("from_ids", "from_examples", "tokenize"),
)
INPUTS = ("text", "weights", "x", "ids", "negate", "inputs")
INPUTS += ("input_ids", "input_mask", "segment_ids")


@contextlib.contextmanager
def serving(engine):
    """Yields the configuration of a server; its model is called "toy".

    Args:
      engine: One of `ENGINES` for a classifier, or None for the toy.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "toy")
        if engine is None:
            toy_models.write(path)
        else:
            path = os.path.join(
                made_once.folder("fuzzed_classifier", _export), "toy"
            )
        flags = {"engine": engine} if engine else {}
        with toy_models.serving(path, **flags) as (_, config):
            yield config


class FuzzCase:
    """Fuzzes a server of the toy; subclasses fuzz one of a classifier."""

    engine = None
    examples = 40

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.config = cls.enterClassContext(serving(cls.engine))

    def setUp(self):
        super().setUp()
        self.expected = self.ask()

    def tearDown(self):
        """Checks that the server still answers as it did at the start."""
        self.assertEqual(self.ask(), self.expected)
        super().tearDown()


def _export(folder):
    tiny_exports.export(
        tiny_exports.write(folder, tiny_exports.classification()),
        os.path.join(folder, "toy"),
        [x for x in SIGNATURES if x != "regress"],
        litert=True,
    )
