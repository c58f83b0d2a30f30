"""Rows like those to come, by which int8 sets its scales.

Shapes:
  B: rows of a call.
  T: pieces of a row.
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
from bert_tf.tasks.classification import inputs as classification_inputs
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.task import Features

_FLAG = "--representative_file"
# More change the scales little.
MAX_ROWS = 256
_TEXT_PAIR = "text_pair"

Samples = Callable[[], Iterator[Mapping[str, np.ndarray]]]


def read(build: Build) -> Samples:
    """Reads --representative_file as the model's task reads what it predicts.

    Args:
      build: The file to be, which has the flag.

    Returns:
      What yields the inputs of the model for some of the rows, from all over
      the file: each of its own length and alone, or of the length and as many
      as the file to be takes.

    Raises:
      UserError: If it is empty, or of another task.
    """
    path = build.config.representative_file
    files.require_file(path, _FLAG)
    features = _featurize(build, path)
    count = len(features)
    if not count:
        raise UserError(
            f"{_FLAG} must have rows with words, by which scales are set. "
            f"Received: {path}, which has none."
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
    # Heads that no task belongs to read texts, or pairs of them.
    is_pair = _TEXT_PAIR in build.head.inputs
    columns = Columns("text", _TEXT_PAIR if is_pair else None)
    examples = list(classification_inputs.read_texts(path, (columns,)))
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
            f"{_FLAG} must be of the model's task, which is to read "
            f"{'pairs of texts' if is_pair else 'single texts'}. Received: "
            f"{path}, which has {'single texts' if is_pair else 'pairs'}; give "
            "another file, or another --pair."
        )
