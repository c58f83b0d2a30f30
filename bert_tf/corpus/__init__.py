"""Text extraction: dumps and data sets made into clean text for pretraining."""
