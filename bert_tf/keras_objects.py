"""Registers bert_tf's models, layers and optimizers with Keras.

After `import bert_tf.keras_objects`, `keras.models.load_model("x.keras")`
returns a model that reads texts, like `bert_tf.load_model`.
"""

from bert_tf import BertModel  # noqa: F401  Registers all classes.
