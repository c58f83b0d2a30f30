"""Tests for bert_tf.flags.options: checks and descriptions of flags."""

import tensorflow as tf

from bert_tf.commands.convert_checkpoint import ConvertCheckpointConfig
from bert_tf.flags import options
from bert_tf.flags.pretrain import PretrainConfig


class ForCardTest(tf.test.TestCase):
    def test_has_what_shapes_the_weights(self):
        config = PretrainConfig(
            bert_config_file="x.json",
            input_file="a,b",
            output_dir="out",
            cache_dir="cache",
            offline=True,
            do_train=True,
            learning_rate=1e-4,
            train_batch_size=32,
            remat=True,
            num_gpus=2,
        )
        self.assertEqual(
            options.for_card(config, num_warmup_steps=7, seed=12345),
            {
                "bert_config_file": "x.json",
                "input_file": "a,b",
                "learning_rate": 1e-4,
                "num_warmup_steps": 7,
            },
        )

    def test_names_are_those_of_the_flags(self):
        config = ConvertCheckpointConfig(
            target_format="tf1", input="a", output="b", offline=True
        )
        self.assertEqual(
            options.for_card(config), {"to": "tf1", "input": "a", "output": "b"}
        )


if __name__ == "__main__":
    tf.test.main()
