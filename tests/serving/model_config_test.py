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
        path = "/models/mrpc/"
        for name, expected in ((None, "mrpc"), ("other", "other")):
            flags = ServeConfig(model_base_path=path, model_name=name)
            models = model_config.of_flags(flags)
            self.assertEqual(models, [ModelConfig(expected, path)])

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
    )
    def test_refuses_others(self, text, message):
        self.assert_refused(text, message)

    def assert_refused(self, text, message):
        with self.assertRaisesRegex(
            UserError, f"--model_config_file.*{message}"
        ):
            self.read(text)

    @parameterized.parameters(
        ("} config { name: 'a' base_path: 'y'", "'a' stands twice"),
        ("model_platform: 'torch'", "model_platform .*'torch'"),
        ("model_version_policy { specific {} }", "names no version"),
        ("logging_config {}", "logging_config"),
    )
    def test_refuses_models(self, more, message):
        self.assert_refused(
            "model_config_list { config { name: 'a' base_path: 'x' "
            f"{more} }} }}",
            message,
        )


class ServeConfigTest(parameterized.TestCase):
    @parameterized.parameters(
        ({}, "either --model_base_path or --model_config_file"),
        ({"model_base_path": "a", "model_config_file": "b"}, "either"),
        ({"model_config_file": "b", "model_name": "c"}, "--model_name needs"),
        ({"port": 8501}, "must differ"),
        ({"port": 65536}, "--port .*below 65536"),
        ({"max_batch_size": 0}, "at least 1"),
        (
            {"batching_parameters_file": "b", "max_batch_size": 2},
            "drop one of the two",
        ),
        (
            {"enable_batching": False, "num_batch_threads": 2},
            "--num_batch_threads needs --enable_batching",
        ),
    )
    def test_refuses_invalid_flags(self, flags, message):
        model = {} if "model" in "".join(flags) else {"model_base_path": "a"}
        with self.assertRaisesRegex(UserError, message):
            ServeConfig(**model if flags else {}, **flags)


if __name__ == "__main__":
    absltest.main()
