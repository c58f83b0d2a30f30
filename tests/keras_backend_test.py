"""Tests for bert_tf.keras_backend, in separate processes."""

import json
import os
import subprocess
import sys
from unittest import mock

import keras
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf import keras_backend
from bert_tf.errors import UserError

_SCRIPT = """
from bert_tf.flags import cli
from bert_tf.commands.tokenize_file import TokenizeFileConfig

def main(config: TokenizeFileConfig) -> None:
    from bert_tf.modeling import bert

cli.run(main)
"""
_FLAGS = (
    f"--vocab_file={__file__}",
    f"--input_file={__file__}",
    "--output_file=unused",
)

_REDUCE = "--xla_cpu_experimental_ynn_fusion_type=-reduce"


class KerasBackendTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.home = self.create_tempdir().full_path

    def _configure(self, contents):
        with open(os.path.join(self.home, "keras.json"), "w") as file:
            file.write(contents)

    def _run(self, program, *arguments, **environment):
        kept = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=kept | {"KERAS_HOME": self.home} | environment,
            capture_output=True,
            text=True,
        )

    def _assert_one_sentence(self, result, backend):
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(
            result.stderr, rf"\AERROR: bert_tf needs .* '{backend}'\.\n\Z"
        )

    def test_script_refuses_the_environment_variable(self):
        result = self._run(_SCRIPT, *_FLAGS, KERAS_BACKEND="jax")
        self._assert_one_sentence(result, "jax")

    def test_script_refuses_the_configuration_file(self):
        self._configure(json.dumps({"backend": "torch"}))
        self._assert_one_sentence(self._run(_SCRIPT, *_FLAGS), "torch")

    @pytest.mark.slow
    def test_environment_variable_wins_over_the_file(self):
        self._configure(json.dumps({"backend": "torch"}))
        result = self._run(_SCRIPT, *_FLAGS, KERAS_BACKEND="tensorflow")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_library_refuses_it_too(self):
        program = "import bert_tf; bert_tf.BertModel"
        result = self._run(program, KERAS_BACKEND="jax")
        self.assertRegex(result.stderr, "UserError: bert_tf needs .*'jax'")

    @parameterized.parameters("", "{", "[]", "{}", '{"backend": "tensorflow"}')
    def test_ignores_a_damaged_configuration_file(self, contents):
        self._configure(contents)
        with (
            mock.patch.dict(os.environ, {"KERAS_HOME": self.home}),
            mock.patch.dict(sys.modules),
        ):
            del sys.modules["keras"]
            os.environ.pop("KERAS_BACKEND", None)
            keras_backend.require_tensorflow()

    def test_imported_keras_reports_its_backend(self):
        with mock.patch.object(keras.config, "backend", return_value="numpy"):
            with self.assertRaisesRegex(UserError, "'numpy'"):
                keras_backend.require_tensorflow()

    @parameterized.parameters(
        ("2.21.0", None, "--xla_cpu_experimental_ynn_fusion_type="),
        ("2.21.0", "--a=1", "--a=1 --xla_cpu_experimental_ynn_fusion_type="),
        ("2.20.0", None, None),
        ("2.21.0", _REDUCE, _REDUCE),
    )
    def test_only_the_faulty_version_gets_the_flag(
        self, version, before, after
    ):
        with mock.patch.dict(os.environ):
            os.environ.pop("XLA_FLAGS", None)
            if before:
                os.environ["XLA_FLAGS"] = before
            keras_backend.avoid_ynnpack(version)
            self.assertEqual(os.environ.get("XLA_FLAGS"), after)


if __name__ == "__main__":
    tf.test.main()
