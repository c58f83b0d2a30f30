"""The original's TensorFlow 1 checkpoints."""
