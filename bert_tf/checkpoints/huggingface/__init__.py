"""Hugging Face's format."""
