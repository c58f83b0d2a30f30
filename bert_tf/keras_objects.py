"""Registers bert_tf's models, layers and optimizers with Keras.

After `import bert_tf.keras_objects`, `keras.models.load_model("x.keras")`
returns a model that reads texts, like `bert_tf.load_model`.
"""

from bert_tf import keras_backend

# Check the backend before Keras is imported: Keras's own error is unclear.
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
