"""BERT for TensorFlow and Keras 3: load, train, predict, save and export.

  import bert_tf

  model = bert_tf.load_model(
      "bert-base-uncased", "classification", labels=["bad", "good"]
  )
  model.fit(["A fine film.", "A waste of time."], ["good", "bad"])
  model.predict("I enjoyed it.")
  model.save("films.keras")

`bert-tf -h` lists the commands, `help(bert_tf.load_model)` the kinds of models.
"""

# Import a public name when it is first used: scripts import this package, too,
# and must print `--help` without waiting for Keras.

import importlib
import sys
from typing import Any

from bert_tf import errors
from bert_tf import keras_backend

__version__ = "0.2.0"  # pyproject.toml reads it.

_HOMES = {
    "BertConfig": "bert_tf.config",
    "BertForClassification": "bert_tf.modeling.task_models",
    "BertForEmbeddings": "bert_tf.modeling.task_models",
    "BertForMultipleChoice": "bert_tf.modeling.task_models",
    "BertForPretraining": "bert_tf.modeling.bert",
    "BertForQuestionAnswering": "bert_tf.modeling.task_models",
    "BertForTagging": "bert_tf.modeling.task_models",
    "BertModel": "bert_tf.modeling.bert",
    "BertTokenizer": "bert_tf.text.tokenizer",
    "build_optimizer": "bert_tf.training.optimizer",
    "export_savedmodel": "bert_tf.api.save",
    "export_tflite": "bert_tf.api.save",
    "load_model": "bert_tf.api.load",
    "load_tokenizer": "bert_tf.api.load",
    "pack": "bert_tf.text.packing",
    "preprocess": "bert_tf.api.raw_rows",
    "save_model": "bert_tf.api.save",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise errors.no_attribute(
            "module 'bert_tf'", name, _HOMES, "; load_model opens all models."
        )
    # Keras' own error for a wrong backend is unclear, so check the backend.
    keras_backend.require_tensorflow()
    if "tensorflow" not in sys.modules:
        from bert_tf.io import terminal

        terminal.drop_noise()
    with errors.extras():
        value = getattr(importlib.import_module(_HOMES[name]), name)
        if _HOMES[name].startswith("bert_tf.modeling."):
            # This class reads only features: add methods that read raw texts.
            models = importlib.import_module("bert_tf.api.models")
            value = models.with_text(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
