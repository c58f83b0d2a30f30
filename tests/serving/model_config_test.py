"""Tests for bert_tf.serving.model_config: models and versions."""

from absl.testing import absltest
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.flags.serve import ServeConfig
from bert_tf.serving import model_config
from bert_tf.serving.model_config import ModelConfig
from bert_tf.serving.model_config import VersionPolicy


class ModelConfigTest(parameterized.TestCase):
    def read(self, text):
        return model_config.read(
            self.create_tempfile("models.config", text).full_path
        )

    def test_model_name_defaults_to_the_folder(self):
        self.assertEqual(
            model_config.of_one_model("/models/mrpc/", None),
            [ModelConfig("mrpc", "/models/mrpc/")],
        )
        (named,) = model_config.of_one_model("/models/mrpc", "other")
        self.assertEqual(named.name, "other")

    def test_file_of_models(self):
        first, second, third = self.read(
            """
            model_config_list {
              config { name: "a" base_path: "/a" model_platform: "tensorflow" }
              config {
                name: "b" base_path: "/b"
                model_version_policy { specific { versions: 3 versions: 5 } }
                version_labels { key: "stable" value: 3 }
              }
              config {
                name: "c" base_path: "/c"
                model_version_policy { latest { num_versions: 2 } }
              }
            }
            """
        )
        self.assertEqual(first, ModelConfig("a", "/a", VersionPolicy(latest=1)))
        self.assertEqual(second.policy.choose([1, 3, 9]), {3})
        self.assertEqual(second.labels, {"stable": 3})
        self.assertEqual(third.policy.choose([9, 1, 3]), {3, 9})

    @parameterized.parameters(
        ("model_config_list { config { nome: 'a' } }", "no field named"),
        ("\xff\xfe", "must be a text file"),
        ("", "model_config_list is required"),
        ("model_config_list { config { name: 'a' } }", "name and a base_path"),
        (
            "model_config_list { config { name: 'a' base_path: 'x' } "
            "config { name: 'a' base_path: 'y' } }",
            "stands twice",
        ),
        (
            "model_config_list { config { name: 'a' base_path: 'x' "
            "model_platform: 'torch' } }",
            "must be 'tensorflow'. Received: 'torch'",
        ),
        (
            "model_config_list { config { name: 'a' base_path: 'x' "
            "model_version_policy { specific {} } } }",
            "names no version",
        ),
        (
            "model_config_list { config { name: 'a' base_path: 'x' "
            "logging_config {} } }",
            "logging_config of a has no meaning",
        ),
    )
    def test_refuses_others(self, text, message):
        with self.assertRaisesRegex(UserError, message):
            self.read(text)


class ServeConfigTest(parameterized.TestCase):
    @parameterized.parameters(
        ({}, "either --model_base_path or --model_config_file"),
        ({"model_base_path": "a", "model_config_file": "b"}, "either"),
        ({"model_config_file": "b", "model_name": "c"}, "--model_name needs"),
        ({"model_base_path": "a", "port": 8501}, "must differ"),
        ({"model_base_path": "a", "port": 65536}, "--port .*below 65536"),
        ({"model_base_path": "a", "max_batch_size": 0}, "at least 1"),
        (
            {
                "model_base_path": "a",
                "batching_parameters_file": "b",
                "max_batch_size": 2,
            },
            "drop one of the two",
        ),
        (
            {
                "model_base_path": "a",
                "enable_batching": False,
                "num_batch_threads": 2,
            },
            "--num_batch_threads needs --enable_batching",
        ),
    )
    def test_refuses_invalid_flags(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            ServeConfig(**flags)


if __name__ == "__main__":
    absltest.main()
