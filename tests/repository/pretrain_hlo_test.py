"""Tests of tools/pretrain_hlo.py, without the part that needs jax and a GPU."""

import os
import pickle
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints import formats
from bert_tf.commands import create_pretraining_data
from bert_tf.data.generators import streaming_worker
from bert_tf.features import PRETRAINING
from tests.support import environments
from tests.support import pretrain_case
from tests.support import record_files
from tests.support import repository
from tests.support import scripts
from tests.support import tiny_pretraining

_TEXT = "".join(f"w{i} w{i + 1} w{i + 2}\n\n" for i in range(5, 50))


@pytest.mark.slow
class PretrainHloTest(pretrain_case.PretrainCase):
    def _run(self, *words, **flags):
        flags = tiny_pretraining.write_flags(self.folder, **flags)
        environments.run(
            *(sys.executable, "-m", "tools.pretrain_hlo", *words),
            *scripts.command_line("run/pretrain.py", flags)[1:],
            cwd=repository.ROOT,
            env=os.environ | {"PYTHONPATH": str(repository.ROOT)},
        )

    def _write_run(self, **flags):
        """Returns the run as the GPU reads it, and the flags of its records."""
        vocab_file = self.path("vocab.txt")
        tiny_pretraining.VOCABULARY.write(vocab_file)
        records = {
            "input_file": self.create_tempfile("text.txt", _TEXT).full_path,
            "output_file": self.path("made.tfrecord"),
            "vocab_file": vocab_file,
            "max_seq_length": 8,
            "max_predictions_per_seq": 3,
        }
        words = scripts.command_line("run/create_pretraining_data.py", records)
        self._run(
            f"--folder={self.path('hlo')}",
            f"--store={self.path('store')}",
            f"--records_flags={' '.join(words[1:])}",
            **flags,
        )
        config = create_pretraining_data.CreatePretrainingDataConfig(**records)
        with open(self.path("hlo", "run.pickle"), "rb") as file:
            return pickle.load(file), config

    def test_weights_of_a_gpu_become_the_model(self):
        flags = {"do_train": True, "num_train_steps": 3}
        run, config = self._write_run(**flags)
        number = run["names"].index("bert/embeddings/word_embeddings")
        self.assertShapeEqual(run["variables"][number], tf.zeros((64, 8)))
        weights = {
            name.replace("/", "|"): value + 1
            for name, value in zip(run["names"], run["variables"], strict=True)
            if name
        }
        np.savez(self.path("gpu-3.npz"), step=3, **weights)
        self._run(f"--weights={self.path('gpu-*.npz')}", **flags)
        log = self.pretrain(**flags)
        self.assertTrue(any("All 3 steps are done" in x for x in log))
        tensors = formats.read(self.path("out", "model")).weights
        for name, value in weights.items():
            self.assertAllEqual(tensors[name.replace("|", "/")], value, name)
        self._check_records(run["plan"], config)

    def _check_records(self, plan, config):
        """Compares the records for a GPU with those that a run reads."""
        create_pretraining_data.main(config)
        rows = record_files.read(config.output_file)
        batches = [
            batch
            for part in range(plan.num_parts)
            for batch, _ in streaming_worker.make_part(plan, part)
        ]
        for feature in PRETRAINING:
            made = np.concatenate([x[feature.name] for x in batches])
            self.assertAllEqual(rows[feature.name], made, feature.name)


if __name__ == "__main__":
    tf.test.main()
