"""Registers bert_tf's models, layers and optimizers with Keras.

`import bert_tf.keras_objects` before `keras.models.load_model("x.keras")`: its
result then reads texts as the result of `bert_tf.load_model` does.
"""

from bert_tf import keras_backend

# Before the import of Keras, whose own message would be less clear.
keras_backend.require_tensorflow()

from bert_tf import BertForClassification  # noqa: E402
from bert_tf import BertForEmbeddings  # noqa: E402
from bert_tf import BertForMultipleChoice  # noqa: E402
from bert_tf import BertForPretraining  # noqa: E402
from bert_tf import BertForQuestionAnswering  # noqa: E402
from bert_tf import BertForTagging  # noqa: E402
from bert_tf import BertModel  # noqa: E402

__all__ = [
    "BertForClassification",
    "BertForEmbeddings",
    "BertForMultipleChoice",
    "BertForPretraining",
    "BertForQuestionAnswering",
    "BertForTagging",
    "BertModel",
]
