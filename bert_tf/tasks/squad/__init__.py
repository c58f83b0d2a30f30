"""Question answering, as in SQuAD."""
