"""Models on disk: formats, weights, loading and conversion."""
