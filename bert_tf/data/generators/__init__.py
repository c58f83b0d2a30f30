"""Generators of pretraining records."""
