"""Runs scripts that write on a full disk: each ends with one sentence.

For training and pretraining data this is tested with their other failures.
"""

import os
import pathlib

import pytest
import tensorflow as tf

from tests.support import full_disk
from tests.support import scripts
from tests.support import tiny_finetuning

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_FREE_BYTES = 8192


def _command_lines(folder, out):
    """Returns the words of each script, by its name."""
    model = f"{folder}/output/model"
    text = f"{folder}/text.txt"
    export = {"model_dir": model}
    learn = {"vocab_size": 3000, "num_unused": 99}
    words = {
        "run/predict.py": export
        | {"input_file": f"{folder}/long.csv", "output_file": f"{out}/a.csv"},
        "run/convert_checkpoint.py": {
            "input": model,
            "to": "huggingface",
            "output": f"{out}/huggingface",
        },
        "run/learn_vocabulary.py": learn
        | {"input_file": text, "output_file": f"{out}/vocab.txt"},
        "run/tokenize_file.py": {
            "vocab_file": f"{model}/vocab.txt",
            "input_file": text,
            "output_file": f"{out}/tokens.jsonl",
        },
        "run/extract_features.py": export
        | {"input_file": text, "output_file": f"{out}/features.jsonl"}
        | {"max_seq_length": 12},
        "export/savedmodel.py": export | {"output_dir": f"{out}/served"},
        "export/tflite.py": export | {"output_file": f"{out}/a.tflite"},
    }
    return {
        script: tiny_finetuning.command_line(str(_ROOT / script), values)
        for script, values in words.items()
    }


class FullDiskTest(tf.test.TestCase):
    @pytest.mark.thorough
    def test_each_script_ends_with_one_sentence(self):
        folder = self.create_tempdir().full_path
        tiny_finetuning.write_rows(f"{folder}/long.csv", 2000)
        with open(f"{folder}/text.txt", "w", encoding="utf-8") as file:
            for number in range(800):
                file.write(f"The {number} cats sat on mat {number**3}.\n\n")
        train = tiny_finetuning.command_line(
            str(_ROOT / "run/finetune_classifier.py"),
            tiny_finetuning.flags(folder),
        )
        with full_disk.mount(self, megabytes=1) as out:
            lines = _command_lines(folder, out)
            (made,) = scripts.run((train, folder))
            self.assertEqual(made.status, 0, made.stderr)
            filler = os.open(f"{out}/filler", os.O_CREAT | os.O_WRONLY)
            os.posix_fallocate(filler, 0, (1 << 20) - _FREE_BYTES)
            os.close(filler)
            ended = scripts.run(*[(words, folder) for words in lines.values()])
            for script, process in zip(lines, ended, strict=True):
                with self.subTest(script):
                    self.assertEqual(process.status, 1, process.stderr)
                    self.assertNotIn("Traceback", process.stderr)
                    last = process.stderr.strip().splitlines()[-1]
                    self.assertRegex(
                        last, "^ERROR: (The disk is full|.* be written)"
                    )
                    self.assertIn(out, last)


if __name__ == "__main__":
    tf.test.main()
