"""Text to ids, inside the graph."""
