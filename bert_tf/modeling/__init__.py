"""BERT as Keras layers and models."""

from bert_tf import keras_backend

keras_backend.require_tensorflow()

import tensorflow as tf  # noqa: E402 (KERAS_BACKEND is checked first)

keras_backend.avoid_ynnpack(tf.__version__)
