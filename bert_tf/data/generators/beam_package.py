"""Says how to get Apache Beam where somebody asks for it and it is missing."""

import importlib.util

from bert_tf.errors import UserError


def require(runner: str) -> None:
    """Raises `UserError` unless the package is there.

    Args:
      runner: The value of --runner, which asks for it.
    """
    if importlib.util.find_spec("apache_beam") is None:
        raise UserError(
            f"--runner={runner} needs Apache Beam, which is not installed; "
            "make an environment for it with `python -m venv .venv-beam && "
            ".venv-beam/bin/pip install -r requirements-beam.txt` and run this "
            "script with .venv-beam/bin/python, or drop --runner."
        )
