"""The tasks of the paper: their data, features, answers and scores."""
