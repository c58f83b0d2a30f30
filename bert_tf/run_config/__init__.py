"""What each script can be told: one frozen dataclass a script.

Field names are flag names unless `name=` says otherwise. Names and defaults are
the original's where the original has the flag. Nothing here imports TensorFlow.
"""
