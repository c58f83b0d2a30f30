"""The layers of BERT, its heads and its models."""
