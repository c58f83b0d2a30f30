"""Tasks: data, features, loss, predictions, metrics."""
