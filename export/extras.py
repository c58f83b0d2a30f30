"""What lies beside the graph of an export, and what its user is told.

The exporter calls, in this order: `complete` with the directory that is not
published yet, renames it to the version, then `write_beside` and `usage.text`.
"""

import os

from bert_tf import files
from export.artifact import Artifact


def complete(directory: str, artifact: Artifact, model_dir: str) -> None:
    """Adds what lies beside the graph, and verifies the whole.

    Args:
      directory: A version directory with graph and variables, under whatever
        temporary name. It gets assets.extra/ (warm-up requests, vocabulary,
        labels, model cards) and batching_params.pbtxt.
      artifact: What it is.
      model_dir: The model that was exported.

    Raises:
      UserError: If the export does not say what the model says.
    """
    raise NotImplementedError


def write_beside(output_dir: str, artifact: Artifact) -> None:
    """Writes models.config and batching_parameters.txt beside the versions."""
    raise NotImplementedError
