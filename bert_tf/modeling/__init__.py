"""The layers of BERT, its heads and its models."""

from bert_tf import keras_backend

keras_backend.require_tensorflow()
