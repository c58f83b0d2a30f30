"""BERT as Keras layers and models."""

from bert_tf import keras_backend

keras_backend.require_tensorflow()
