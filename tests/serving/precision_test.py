"""Tests for bert_tf.serving.precision."""

import json
import os
import pathlib
import subprocess
import sys

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.serving import precision
from tests.support import files_case

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# Prints for each of several flags whether weights are packed, and that
# TensorFlow was not imported.
_PACK = """
import json, os, sys
from bert_tf.distribute import packed_weights
from bert_tf.flags.serve import ServeConfig
from bert_tf.serving import precision
packed = []
for flags in json.load(sys.stdin):
    os.environ.pop(packed_weights.VARIABLE, None)
    precision.pack_weights(ServeConfig(**flags))
    packed.append(packed_weights.are_assumed())
print(json.dumps([packed, "tensorflow" in sys.modules]))
"""


class PrecisionTest(files_case.FolderCase):
    def write(self, name, version, card):
        """Writes the model card of a version; returns the model's folder."""
        extras = os.path.join(self.folder, name, str(version), "assets.extra")
        os.makedirs(extras)
        if card is not None:
            path = os.path.join(extras, "model_card.json")
            pathlib.Path(path).write_text(card, encoding="utf-8")
        return os.path.join(self.folder, name)

    def mark(self, name, version, marked):
        card = {"export": {"precision": marked}}
        return self.write(name, version, json.dumps(card))

    @parameterized.parameters(
        ('{"export": {"precision": "bfloat16"}}', "bfloat16"),
        ('{"export": {"precision": "float32"}}', "float32"),
        ('{"export": {}}', None),
        ('{"export": "bfloat16"}', None),
        ("[1]", None),
        ('{"export"', None),
        (None, None),
    )
    def test_reads_the_model_card(self, card, expected):
        folder = self.write("model", 1, card)
        self.assertEqual(precision.read(os.path.join(folder, "1")), expected)

    def test_packs_if_the_newest_version_of_each_model_is_bfloat16(self):
        newest = self.mark("newest", 1, "float32")
        self.mark("newest", 2, "bfloat16")
        # Not 9 < 10, as strings are compared.
        older = self.mark("older", 9, "bfloat16")
        self.mark("older", 10, "float32")
        unmarked = self.write("unmarked", 1, None)
        empty = os.path.join(self.folder, "empty")
        os.makedirs(empty)

        def models(*paths, policy=""):
            path = self.create_tempfile(
                content="model_config_list {"
                + "".join(
                    f"config {{ name: '{os.path.basename(x)}' "
                    f"base_path: '{x}' {policy} }}"
                    for x in paths
                )
                + "}"
            )
            return {"model_config_file": path.full_path}

        older_only = "model_version_policy { specific { versions: 9 } }"
        cases = [
            ({"model_base_path": newest}, True),
            ({"model_base_path": older}, False),
            ({"model_base_path": unmarked}, False),
            ({"model_base_path": empty}, False),
            ({"model_base_path": f"{self.folder}/nowhere"}, False),
            ({"model_base_path": newest, "engine": "litert"}, False),
            (models(newest), True),
            (models(newest, older), False),
            (models(older, policy=older_only), True),
            (models(), False),
        ]
        result = subprocess.run(
            [sys.executable, "-c", _PACK],
            input=json.dumps([flags for flags, _ in cases]),
            env=os.environ | {"PYTHONPATH": str(_ROOT)},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        self.assertEqual(
            json.loads(result.stdout), [[packs for _, packs in cases], False]
        )


if __name__ == "__main__":
    tf.test.main()
