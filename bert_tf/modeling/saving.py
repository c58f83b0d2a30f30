"""Keras' saving and exporting of a model together with its text files.

A model reads features, not texts. What its texts need (vocab.txt,
tokenizer.json and task.json, as in a model directory) travels with it: `.keras`
files hold it in assets/, and the layers above, which know what it means,
register themselves in `hooks`.
"""

import contextlib
import dataclasses
import io
import json
import os
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf.io import files

TASK_FILE = "task.json"
VOCAB_FILE = "vocab.txt"


@dataclasses.dataclass
class Hooks:
    """Functions of the layers above, set when these are imported.

    Attributes:
      restore: Makes a model's `preprocessor` from its `text_files`.
      exporters: Keras' name of a format to the function of a model, a path and
        keyword arguments that writes it for models with a vocabulary.
    """

    restore: Callable[[keras.Model], None] | None = None
    exporters: dict[str, Callable[..., None]] = dataclasses.field(
        default_factory=dict
    )


hooks = Hooks()


class SavedWithText:
    """A mixin of Keras models: saves and exports them with their texts' files.

    Attributes:
      text_files: File name to contents, as the model was loaded; empty for
        models that a constructor made.
      preprocessor: The text side of the model, set by the loader that has the
        tokenizer: `bert_tf.api.preprocessor.Preprocessor`. None for a
        model that its constructor made.
    """

    text_files: Mapping[str, str] = {}
    preprocessor: Any = None
    # The axes of the inputs: batch and tokens.
    _input_rank = 2

    @property
    def has_vocabulary(self) -> bool:
        """True if the vocabulary of the model is known."""
        return VOCAB_FILE in self.text_files

    def _features(self) -> dict[str, keras.InputSpec]:
        """Returns the features of a call, for exports without a vocabulary."""
        shape = [None] * self._input_rank
        return {
            name: keras.InputSpec("int32", shape, name=name)
            for name in ("input_ids", "input_mask", "segment_ids")
        }

    def current_text_files(self) -> dict[str, str]:
        """Returns `text_files` with the current values of the task."""
        contents = dict(self.text_files)
        if self.preprocessor is not None:
            values = dict(self.preprocessor.task_values)
            contents[TASK_FILE] = json.dumps(values, ensure_ascii=False)
        return contents

    def save_assets(self, dir_path: str) -> None:
        """Writes the text files into a folder; called by Keras."""
        for name, text in self.current_text_files().items():
            files.write_bytes(os.path.join(dir_path, name), text.encode())

    def load_assets(self, dir_path: str | None) -> None:
        """Reads the text files of a folder, if it exists; called by Keras."""
        if dir_path is None or not tf.io.gfile.isdir(dir_path):
            return
        paths = {x: os.path.join(dir_path, x) for x in os.listdir(dir_path)}
        self.text_files = {
            name: files.read_bytes(path).decode()
            for name, path in sorted(paths.items())
            if not tf.io.gfile.isdir(path)
        }
        if self.text_files and hooks.restore is not None:
            hooks.restore(self)

    def export(
        self,
        filepath: str | os.PathLike,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """Exports the model, with its tokenizer if it has one.

        Args:
          filepath: The directory of versions, or for "litert" the file.
          format: "tf_saved_model" writes what export/savedmodel.py writes,
            "litert" what export/tflite.py writes. In other formats, without a
            vocabulary or with an `input_signature`, Keras exports the model,
            which then reads features.
          verbose: Whether to print how to use the result; by default True.
          input_signature: As for Keras.
          **kwargs: The script's flags, such as `max_seq_length=64`.

        Raises:
          UserError: If a flag does not fit, or verification fails.
        """
        exporter = hooks.exporters.get(format)
        has_signature = input_signature is not None
        if exporter is None or has_signature or not self.has_vocabulary:
            super().export(
                filepath,
                format=format,
                verbose=verbose,
                input_signature=input_signature or [self._features()],
                **kwargs,
            )
            return
        quiet = contextlib.redirect_stdout(io.StringIO())
        with contextlib.nullcontext() if verbose in (None, True) else quiet:
            exporter(self, os.fspath(filepath), **kwargs)
