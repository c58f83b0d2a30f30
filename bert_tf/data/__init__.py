"""Pretraining data: from a corpus to records to batches."""
