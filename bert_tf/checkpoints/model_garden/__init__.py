"""The TensorFlow Model Garden's checkpoints."""
