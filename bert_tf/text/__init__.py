"""Text to token ids, eagerly and in the graph."""
