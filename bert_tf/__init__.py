"""BERT for TensorFlow and Keras 3.

The names below are the API for notebooks; they are imported when they are
first used, so that scripts answer `--help` at once.
"""

import importlib
from typing import Any

from bert_tf import keras_backend

_HOMES = {
    "BertConfig": "bert_tf.config",
    "BertForClassification": "bert_tf.modeling.task_models",
    "BertForMultipleChoice": "bert_tf.modeling.task_models",
    "BertForPretraining": "bert_tf.modeling.bert",
    "BertForQuestionAnswering": "bert_tf.modeling.task_models",
    "BertForTagging": "bert_tf.modeling.task_models",
    "BertModel": "bert_tf.modeling.bert",
    "BertTokenizer": "bert_tf.text.tokenizer",
    "build_optimizer": "bert_tf.training.optimizer",
    "load_model": "bert_tf.inference.load",
    "load_tokenizer": "bert_tf.inference.load",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bert_tf' has no attribute {name!r}")
    # Before Keras is imported, whose own message would be less clear.
    keras_backend.require_tensorflow()
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
