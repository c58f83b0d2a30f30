"""Pretraining on record files."""
