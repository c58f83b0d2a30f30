"""Tests a left-to-right model, from its training text to a classifier."""

import math
import os
import random

import pytest
import tensorflow as tf

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.commands import pretrain
from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.commands.pretrain import PretrainConfig
from bert_tf.data import create as pretraining_data
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import finetuning_case
from tests.support import tiny_finetuning
from tests.support import tiny_model

_LENGTH = 12


def _make_text():
    """Returns sentences of six tokens; two tokens vary between two words."""
    rng = random.Random(5)
    return "\n\n".join(
        f"the {rng.choice(['cat', 'dog'])} sat on {rng.choice(['mat', '東'])} ."
        for _ in range(60)
    )


@pytest.mark.slow
class LeftToRightTest(files_case.FolderCase):
    def _create_data(self):
        files.write_text(self.path("text.txt"), _make_text())
        Vocabulary(tiny_model.TOKENS).write(self.path("vocab.txt"))
        return pretraining_data.create(
            CreatePretrainingDataConfig(
                input_file=self.path("text.txt"),
                output_file=self.path("x.tfrecord"),
                vocab_file=self.path("vocab.txt"),
                max_seq_length=_LENGTH,
                num_processes=1,
                left_to_right=True,
                next_sentence_pairs=False,
            )
        )

    def _pretrain(self, **flags):
        path = self.path("bert_config.json")
        files.write_text(path, tiny_model.ONE_LAYER.to_json())
        config = PretrainConfig(
            **{
                "bert_config_file": path,
                "input_file": self.path("x.tfrecord"),
                "output_dir": self.path("pretrained"),
                "max_seq_length": _LENGTH,
                "do_train": True,
                "do_eval": True,
                "left_to_right": True,
                "use_next_sentence": False,
                "learning_rate": 0.01,
                "num_train_steps": 100,
                "num_warmup_steps": 10,
            }
            | flags
        )
        pretrain.main(config)
        text = files.read_bytes(self.path("pretrained/eval_results.txt"))
        pairs = [line.split(" = ") for line in text.decode().splitlines()]
        return {name: float(value) for name, value in pairs}

    def _outputs(self, stored, ids):
        model = checkpoint_loading.build_model(stored, "encoder")
        inputs = {"input_ids": tf.constant([ids])}
        inputs["input_mask"] = tf.ones_like(inputs["input_ids"])
        inputs["segment_ids"] = tf.zeros_like(inputs["input_ids"])
        return model(inputs)["sequence_output"][0]

    @pytest.mark.thorough
    def test_text_leads_to_a_classifier_that_reads_to_the_left(self):
        made = self._create_data()
        self.assertEqual(made.max_predictions_per_seq, _LENGTH - 2)
        self.assertEqual(
            made.counts["num_predicted"],
            made.counts["num_pieces"] - 2 * made.counts["num_instances"],
        )
        with self.assertRaisesRegex(UserError, "max_predictions_per_seq=10"):
            self._pretrain(max_predictions_per_seq=9)

        results = self._pretrain()

        perplexity = results["masked_lm_perplexity"]
        self.assertAllClose(perplexity, math.exp(results["loss"]), rtol=1e-5)
        # Two random bits in six tokens; seeing later tokens would go lower.
        self.assertBetween(perplexity, 0.98 * 4 ** (1 / 6), 1.05 * 4 ** (1 / 6))
        card = files.read_bytes(
            self.path("pretrained/model/README.md")
        ).decode()
        self.assertIn("run/finetune_classifier.py", card)
        self.assertNotIn("fill_mask", card)
        self.assertStartsWith(card, '---\nlicense: "unknown"\n')
        self.assertNotIn(self.folder, card)
        tuned = tiny_finetuning.config(
            self.folder,
            pretrained_model_dir=self.path("pretrained/model"),
            num_train_epochs="1",
            do_eval=False,
        )
        finetuning_case.run(tuned)
        stored = formats.read(os.path.join(tuned.output_dir, "model"))
        self.assertTrue(stored.config.left_to_right)
        one = self._outputs(stored, [2, 5, 6, 8, 9, 10])
        other = self._outputs(stored, [2, 5, 6, 8, 7, 10])
        self.assertAllEqual(one[:4], other[:4])
        self.assertNotAllClose(one[4], other[4], atol=0.05)
        self.assertNotAllClose(one[5], other[5], atol=1e-3)


if __name__ == "__main__":
    tf.test.main()
