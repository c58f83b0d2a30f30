"""Embeddings: texts as vectors, for search and similarity."""
