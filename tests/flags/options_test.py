"""Tests for bert_tf.flags.options: checks and descriptions of flags."""

import dataclasses
import math

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.convert_checkpoint import ConvertCheckpointConfig
from bert_tf.commands.pretrain import PretrainConfig
from bert_tf.errors import UserError
from bert_tf.flags import options


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


@dataclasses.dataclass(frozen=True)
class _Flags(options.Flags):
    share: float | None = options.data(None, "x", **options.SHARE)
    above: float = options.data(1.0, "x", above=0, below=8)
    kind: str = options.data("a", "x")
    of_b: int = options.data(0, "x", needs=("kind=b", "on"))
    on: bool = options.data(False, "x", not_with="kind=c")
    off: bool = options.data(True, "x", needs="share")


class RulesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ({"share": 1.0}, None),
        ({"share": 1.1}, "--share must be at least 0 and at most 1.*: 1.1"),
        ({"share": math.nan}, "--share must be .*nan"),
        ({"above": 0.0}, "--above must be above 0 and below 8.*: 0.0"),
        ({"of_b": 2}, "--of_b needs --kind=b or --on.*--of_b=2.*drop"),
        ({"of_b": 2, "kind": "B"}, None),
        ({"on": True, "kind": "c"}, "--on cannot be used with --kind=c.*drop"),
        ({"off": False}, "--nooff needs --share"),
        ({"off": False, "share": 0.5}, None),
    )
    def test_flags_are_checked_where_they_are_declared(self, flags, message):
        if message is None:
            _Flags(**flags)
            return
        with self.assertRaisesRegex(UserError, message):
            _Flags(**flags)

    def test_unknown_rules_are_refused(self):
        with self.assertRaisesRegex(ValueError, "atleast"):
            options.data(1, "x", atleast=1)


if __name__ == "__main__":
    tf.test.main()
