"""Models on disk: formats, weights, conversion."""
