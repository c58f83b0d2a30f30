"""Tagging of words, as in named entity recognition."""
