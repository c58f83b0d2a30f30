"""Calibration data for int8: representative rows of --representative_file.

Shapes:
  B: rows of a call.
  T: tokens per row.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from bert_tf.errors import UserError
from bert_tf.export.tflite import eval_set
from bert_tf.export.tflite.build import Build
from bert_tf.io import files
from bert_tf.tasks import packed_rows
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.task import Features

_FLAG = "--representative_file"
# More rows change the scales little.
MAX_ROWS = 256
_TEXT_PAIR = "text_pair"

Samples = Callable[[], Iterator[Mapping[str, np.ndarray]]]


def read(build: Build) -> Samples:
    """Reads --representative_file as the model's task reads its inputs.

    Args:
      build: The build of the file, with the flag.

    Returns:
      A function that yields the inputs of the model for rows sampled evenly
      from the file: single rows of their own length, or batches of the fixed
      size and length of the .tflite file.

    Raises:
      UserError: If the file is empty, or of another task.
    """
    path = build.config.representative_file
    files.require_file(path, _FLAG)
    features = _featurize(build, path)
    count = len(features)
    if not count:
        raise UserError(
            f"{_FLAG} must have rows with words, for calibration. Received: "
            f"{path}, which has none."
        )
    chosen = np.unique(
        np.linspace(0, count - 1, min(count, MAX_ROWS)).astype(np.int64)
    )

    def samples() -> Iterator[Mapping[str, np.ndarray]]:
        size = build.batch_size or 1
        for start in range(0, len(chosen), size):
            indices = np.resize(chosen[start : start + size], size)
            length = build.seq_length or int(features.lengths[indices].max())
            batch = features.batch(indices, length)
            yield {name: batch[name] for name in task_prediction.MODEL_INPUTS}

    return samples


def _featurize(build: Build, path: str) -> Features:
    if eval_set.has_task(build):
        task = eval_set.task_of(build, _FLAG)
        examples = list(task.read_inputs(path))
        if isinstance(task, ClassificationTask):
            _check_pairs(build, path, examples)
        return task.featurize(examples, build.stored.build_tokenizer())
    # Heads without a task read texts or pairs of texts.
    is_pair = _TEXT_PAIR in build.head.inputs
    columns = Columns("text", _TEXT_PAIR if is_pair else None)
    examples = list(classification_examples.read_texts(path, (columns,)))
    return packed_rows.pack_texts(
        [example.text_a for example in examples],
        [example.text_b for example in examples] if is_pair else None,
        build.head.tokenizer,
        build.head.max_seq_length,
    )


def _check_pairs(
    build: Build, path: str, examples: Sequence[InputExample]
) -> None:
    is_pair = _TEXT_PAIR in build.head.inputs
    if any((example.text_b is not None) != is_pair for example in examples):
        raise UserError(
            f"{_FLAG} must have {'pairs of' if is_pair else 'single'} texts, "
            f"as the model's task. Received: {path}, which has "
            f"{'single texts' if is_pair else 'pairs'}; change the file or "
            "--pair."
        )
