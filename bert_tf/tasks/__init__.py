"""Tasks: data, features, loss, predictions and metrics."""
