"""Corpora in, pretraining records out, records in."""
