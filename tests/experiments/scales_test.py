"""Tests for bert_tf.experiments.scales, and for the paper's flag files."""

import tensorflow as tf
from absl import flags as absl_flags
from absl.testing import parameterized

from bert_tf.experiments import costs
from bert_tf.experiments import jobs
from bert_tf.experiments import scales
from bert_tf.flags import cli
from bert_tf.flags import flag_files
from bert_tf.flags.classifier import ClassifierConfig
from bert_tf.flags.classifier import MultipleChoiceConfig
from bert_tf.flags.experiments import SCALES
from bert_tf.flags.squad import SquadConfig
from bert_tf.flags.tagger import TaggerConfig

_START = ("--output_dir=out", "--pretrained_model_dir=bert-base-uncased")
_SQUAD = ("--train_file=a.json", "--predict_file=b.json")


def _parse(config_class, *words):
    values = absl_flags.FlagValues()
    read_config = cli.define_flags(config_class, values)
    values(["program", *flag_files.expand([*words, *_START])])
    return read_config()


class PaperScaleTest(tf.test.TestCase, parameterized.TestCase):
    # Sections 4.1 to 4.4 of the paper: batch, epochs, learning rates.
    @parameterized.parameters(
        (
            "classification",
            ClassifierConfig,
            ("--task_name=mrpc", "--data_dir=x"),
            (32, 3, [5e-5, 4e-5, 3e-5, 2e-5]),
        ),
        (
            "multiple_choice",
            MultipleChoiceConfig,
            ("--task_name=swag", "--data_dir=x"),
            (16, 3, [2e-5]),
        ),
        ("squad", SquadConfig, _SQUAD, (32, 3, [5e-5])),
        ("squad2", SquadConfig, _SQUAD, (48, 2, [5e-5])),
    )
    def test_flag_file_has_the_papers_values(self, kind, config, data, values):
        flags = scales.read("paper").flags(kind)
        parsed = _parse(config, f"--flagfile={flags['flagfile']}", *data)
        size, epochs, rates = values
        trials = parsed.trials()
        self.assertEqual([x.learning_rate for x in trials], rates)
        self.assertEqual({x.train_batch_size for x in trials}, {size})
        self.assertEqual({x.num_train_epochs for x in trials}, {epochs})
        self.assertTrue(parsed.do_train and parsed.do_eval)
        self.assertEqual(
            getattr(parsed, "version_2_with_negative", False), kind == "squad2"
        )

    def test_taggers_try_the_values_of_appendix_a3(self):
        flags = scales.read("paper").flags("tagging")
        trials = _parse(
            TaggerConfig, f"--flagfile={flags['flagfile']}", "--data_dir=x"
        ).trials()
        self.assertLen(trials, 18)
        self.assertEqual({x.train_batch_size for x in trials}, {16, 32})
        self.assertEqual({x.learning_rate for x in trials}, {5e-5, 3e-5, 2e-5})
        self.assertEqual({x.num_train_epochs for x in trials}, {2, 3, 4})

    def test_features_of_four_layers_can_be_taken_at_each_scale(self):
        for name in SCALES:
            scale = scales.read(name)
            layers = scale.config(scale.base)["num_hidden_layers"]
            # For Tables 7 and 8: concat_last_four_hidden.
            self.assertGreaterEqual(layers, 4, name)

    def test_kinds_share_flags_where_a_scale_has_none_of_their_own(self):
        paper, small = scales.read("paper"), scales.read("small")
        self.assertEqual(paper.flags("squad2")["flagfile"], "squad2.flags")
        self.assertEqual(small.flags("squad2"), small.flags("squad"))
        self.assertEqual(
            paper.flags("regression"), paper.flags("classification")
        )

    def test_ids_and_estimates_read_the_flag_file(self):
        folder = self.create_tempdir()
        path = folder.create_file("a.flags", "--num_train_epochs=3").full_path
        ids = []
        for text in ("--num_train_epochs=3", "--num_train_epochs=4"):
            folder.create_file("a.flags", text)
            command = jobs.Command("run/x.py", {"flagfile": path, "b": 1})
            ids.append(jobs.content_id("x", [command], (), None))
        self.assertNotEqual(*ids)
        flags = jobs.with_flag_file({"flagfile": path, "num_train_epochs": 5})
        self.assertEqual(flags["num_train_epochs"], 5)
        config = {
            "hidden_size": 4,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "vocab_size": 9,
        }
        one = {"num_train_epochs": "2", "learning_rate": "5e-5"}
        two = one | {"learning_rate": "5e-5,4e-5"}
        self.assertEqual(
            costs.finetuning(config, two, 100, 10),
            2 * costs.finetuning(config, one, 100, 10),
        )


if __name__ == "__main__":
    tf.test.main()
