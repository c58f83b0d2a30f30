"""Tests for bert_tf.config and the checks of bert_tf.flags."""

import dataclasses
import importlib
import json
import pathlib
import pkgutil
import subprocess
import sys

import tensorflow as tf
from absl.testing import parameterized

from bert_tf import commands
from bert_tf import flags
from bert_tf.commands.extract_features import ExtractFeaturesConfig
from bert_tf.config import BertConfig
from bert_tf.config import fields_affecting
from bert_tf.config import option
from bert_tf.errors import UserError
from bert_tf.flags import options
from tests.support.shared_data import golden

_VALUES = {
    "vocab_size": 101,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "hidden_act": "relu",
    "hidden_dropout_prob": 0.25,
    "attention_probs_dropout_prob": 0.125,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "initializer_range": 0.03,
}
_LEARN_VOCABULARY = {"input_file": "a", "output_file": "b"}
_CREATE_DATA = {**_LEARN_VOCABULARY, "vocab_file": "c"}
_PRETRAIN = {
    "bert_config_file": "a",
    "input_file": "b",
    "output_dir": "c",
    "do_train": True,
}


class BertConfigTest(tf.test.TestCase, parameterized.TestCase):
    def test_json_keeps_every_value(self):
        config = BertConfig.from_dict(_VALUES)
        self.assertEqual(json.loads(config.to_json()), _VALUES)
        self.assertEqual(BertConfig.from_json(config.to_json(), "x"), config)

    def test_added_keys_are_written_only_if_not_default(self):
        ours = {"layer_norm_eps": 1e-6, "left_to_right": True}
        for key, value in ours.items():
            config = BertConfig.from_dict({**_VALUES, key: value})
            self.assertEqual(config.to_dict(), {**_VALUES, key: value})
            self.assertEqual(BertConfig.from_dict(config.to_dict()), config)

    def test_defaults_are_those_of_the_original(self):
        config = BertConfig(vocab_size=30522)
        expected = {
            "vocab_size": 30522,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "max_position_embeddings": 512,
            "type_vocab_size": 16,
            "initializer_range": 0.02,
        }
        self.assertEqual(config.to_dict(), expected)

    def test_released_configurations_parse(self):
        folder = pathlib.Path(golden("vocab"))
        paths = sorted(folder.rglob("*config*.json"))
        self.assertNotEmpty(paths)
        for path in paths:
            BertConfig.from_json(path.read_text(encoding="utf-8"), str(path))

    def test_released_unused_keys_are_accepted_by_name(self):
        unused = {"directionality": "bidi", "pooler_fc_size": 768}
        config = BertConfig.from_dict({**_VALUES, **unused})
        self.assertEqual(config.to_dict(), _VALUES)

    @parameterized.parameters(
        (None, "linear"), ("", "linear"), ("GELU", "gelu")
    )
    def test_reads_activations_as_the_original(self, name, expected):
        config = BertConfig.from_dict({**_VALUES, "hidden_act": name})
        self.assertEqual(config.hidden_act, expected)

    def test_whole_number_is_a_valid_probability(self):
        config = BertConfig.from_dict({**_VALUES, "hidden_dropout_prob": 0})
        self.assertEqual(config.hidden_dropout_prob, 0)

    @parameterized.parameters(
        ({"hiden_size": 24}, r"Unknown keys in x\.json: hiden_size"),
        ({"num_attention_heads": 5}, "heads=5, hidden_size=24"),
        ({"hidden_act": "swish"}, "'swish'"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"num_hidden_layers": -1}, "num_hidden_layers=-1"),
        ({"num_hidden_layers": 10**9}, "at most 1000"),
        ({"vocab_size": "101"}, "vocab_size='101'"),
        ({"vocab_size": 101.5}, r"vocab_size=101\.5"),
        ({"vocab_size": True}, "vocab_size=True"),
        ({"hidden_dropout_prob": 1.0}, r"hidden_dropout_prob=1\.0"),
        ({"attention_probs_dropout_prob": -0.1}, r"prob=-0\.1"),
        ({"left_to_right": 1}, "left_to_right=1"),
        ({"hidden_size": None}, "hidden_size=None"),
    )
    def test_wrong_values_are_refused(self, changes, message):
        with self.assertRaisesRegex(UserError, message):
            BertConfig.from_dict({**_VALUES, **changes}, "x.json")

    def test_rejects_missing_vocabulary_size(self):
        values = {k: v for k, v in _VALUES.items() if k != "vocab_size"}
        with self.assertRaisesRegex(UserError, "x.json lacks .*vocab_size"):
            BertConfig.from_dict(values, "x.json")

    @parameterized.parameters(
        ('{"vocab_size": 101,}', r"x\.json is not valid JSON"),
        ("[101]", "one JSON object. Received: list"),
        ("", r"x\.json is not valid JSON"),
    )
    def test_text_that_is_no_object_is_refused(self, text, message):
        with self.assertRaisesRegex(UserError, message):
            BertConfig.from_json(text, "x.json")


class RunConfigTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("LearnVocabularyConfig", {"num_unused": 98}, "--num_unused.*98"),
        ("LearnVocabularyConfig", {"vocab_size": 999}, "--vocab_size.*999"),
        ("LearnVocabularyConfig", {"min_frequency": 0}, "--min_frequency"),
        (
            "LearnVocabularyConfig",
            {"character_coverage": 1.5},
            "--character_coverage.*1.5",
        ),
        (
            "CreatePretrainingDataConfig",
            {"mask_rate": 0.9},
            "must add up to 1. Received: 1.1",
        ),
        (
            "CreatePretrainingDataConfig",
            {"masked_lm_prob": -0.1},
            "--masked_lm_prob",
        ),
        (
            "CreatePretrainingDataConfig",
            {"generator": "original", "split_sentences": True},
            "--split_sentences .*--generator=original",
        ),
        (
            "CreatePretrainingDataConfig",
            {"generator": "original", "num_shards": 4},
            "--num_shards cannot .*original",
        ),
        ("CreatePretrainingDataConfig", {"dupe_factor": 0}, "--dupe_factor"),
        ("PretrainConfig", {"do_train": False}, "--do_train and --do_eval"),
        ("PretrainConfig", {"train_batch_size": 0}, "--train_batch_size"),
        ("PretrainConfig", {"learning_rate": 0.0}, "--learning_rate"),
        ("PretrainConfig", {"micro_batch_size": "half"}, "'half'"),
        ("PretrainConfig", {"num_warmup_steps": -1}, "--num_warmup_steps"),
        ("PretrainConfig", {"stop_at_step": 0}, "--stop_at_step"),
        ("PretrainConfig", {"seed": -1}, "--seed.* Received: -1"),
        (
            "PretrainConfig",
            {"masked_lm_prob": 0.3},
            "--masked_lm_prob needs --dynamic_masking",
        ),
        (
            "PretrainConfig",
            {"tpu": "grpc://10.0.0.2"},
            "--tpu needs .* --distribution_strategy=tpu",
        ),
        (
            "PretrainConfig",
            {"init_optimizer_state": True},
            "--init_optimizer_state needs --init_checkpoint",
        ),
    )
    def test_wrong_flags_are_refused(self, name, changes, message):
        given = {
            "LearnVocabularyConfig": _LEARN_VOCABULARY,
            "CreatePretrainingDataConfig": _CREATE_DATA,
            "PretrainConfig": _PRETRAIN,
        }[name]
        config_cls = _all_run_configs()[name]
        config_cls(**given)  # Valid, so only the change can be refused.
        with self.assertRaisesRegex(UserError, message):
            config_cls(**{**given, **changes})

    def test_features_come_from_a_directory_or_from_three_files(self):
        files = {"input_file": "a", "output_file": "b"}
        trio = {
            "bert_config_file": "c",
            "init_checkpoint": "d",
            "vocab_file": "e",
        }
        ExtractFeaturesConfig(**files, **trio)
        ExtractFeaturesConfig(**files, model_dir="f")
        with self.assertRaisesRegex(UserError, "--model_dir cannot be"):
            ExtractFeaturesConfig(**files, **trio, model_dir="f")
        # The other two files may be next to the checkpoint, so none is needed.
        ExtractFeaturesConfig(**files, init_checkpoint="d")
        del trio["init_checkpoint"]
        with self.assertRaisesRegex(UserError, "or --init_checkpoint"):
            ExtractFeaturesConfig(**files, **trio)

    def test_finds_flags_by_their_effect_on_training(self):
        @dataclasses.dataclass(frozen=True)
        class _Flags:
            rate: float = option("Rate.", 0.1)
            path: str = option("Path.", "a", affects="place")
            every: int = option("Interval.", 5, affects="nothing")

        self.assertEqual(fields_affecting(_Flags, "weights"), {"rate"})
        self.assertEqual(
            fields_affecting(_Flags, "place", "nothing"), {"path", "every"}
        )
        with self.assertRaisesRegex(ValueError, "'loss'"):
            option("Text.", 1, affects="loss")

    def test_every_field_has_a_help_sentence(self):
        for config_cls in _all_run_configs().values():
            for field in dataclasses.fields(config_cls):
                label = f"{config_cls.__name__}.{field.name}"
                self.assertTrue(field.metadata.get("help"), label)

    def test_configurations_are_frozen(self):
        for config_cls in _all_run_configs().values():
            # The parameter is enough; an assignment would need an instance.
            self.assertTrue(
                config_cls.__dataclass_params__.frozen, config_cls.__name__
            )

    def test_flags_import_without_tensorflow(self):
        names = {value.__module__ for value in _all_run_configs().values()}
        code = (
            f"import sys, bert_tf.flags.cli, {', '.join(sorted(names))}; "
            "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


def _all_run_configs():
    """Returns the configurations of all modules by name."""
    modules = [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for package in (flags, commands)
        for module in pkgutil.iter_modules(package.__path__)
    ]
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, options.Flags)
        and name.endswith("Config")
    }


if __name__ == "__main__":
    tf.test.main()
