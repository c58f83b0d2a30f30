"""Checks Keras' backend, and avoids a fault of TensorFlow 2.21."""

import json
import os
import sys

from bert_tf.errors import UserError

_YNNPACK = "--xla_cpu_experimental_ynn_fusion_type"


def _configured_backend() -> str:
    """Returns the backend that Keras will choose, without importing Keras.

    As in Keras, the variable KERAS_BACKEND overrides `keras.json`, and errors
    in `keras.json` are ignored.
    """
    if backend := os.environ.get("KERAS_BACKEND"):
        return backend
    home = os.environ.get("KERAS_HOME", "~/.keras")
    path = os.path.join(os.path.expanduser(home), "keras.json")
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file).get("backend", "tensorflow")
    except (OSError, ValueError, AttributeError):
        return "tensorflow"


def require_tensorflow() -> None:
    """Checks that Keras runs, or will run, on TensorFlow.

    Call this before `keras` is imported: if the chosen backend is not
    installed, the import fails with a message that does not name the setting.

    Raises:
      UserError: If another backend is chosen.
    """
    keras = sys.modules.get("keras")
    is_imported = hasattr(keras, "config")
    backend = keras.config.backend() if is_imported else _configured_backend()
    if backend != "tensorflow":
        raise UserError(
            "bert_tf needs the Keras backend tensorflow: set KERAS_BACKEND="
            'tensorflow, or "backend" in ~/.keras/keras.json. Received: '
            f"{backend!r}."
        )


def avoid_ynnpack(version: str) -> None:
    """Keeps XLA from YNNPACK's programs, which crash in TensorFlow 2.21.

    If two threads run a compiled program for the first time at once, as two
    layers do, both append to the same vector: a segmentation fault in one of
    three fine-tuning runs. Call this before XLA compiles anything. A value of
    the same flag in XLA_FLAGS wins.

    Args:
      version: TensorFlow's version. If it is not 2.21, nothing is done, as XLA
        lacks the flag and would abort.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if version.startswith("2.21.") and _YNNPACK not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_YNNPACK}=".strip()
