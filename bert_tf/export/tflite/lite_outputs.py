"""What a .tflite file computes of an evaluation set.

Shapes:
  N: rows of features.
  B: rows of a call.
  T: pieces of a row.
  L: number of labels.
"""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from scipy import special

from bert_tf.data import length_buckets
from bert_tf.export.tflite import eval_set
from bert_tf.export.tflite.eval_set import EvalSet
from bert_tf.features import INPUT_IDS
from bert_tf.inference.lite_model import LiteModel
from bert_tf.io import progress
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.task import Task

# Logarithms of probabilities stay finite.
_LEAST = float(np.finfo(np.float32).tiny)


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """One call of a file.

    Attributes:
      indices: <int64>[at most B], its rows; what is behind them fills it up.
      inputs: [B, ...] each by name.
    """

    indices: np.ndarray
    inputs: Mapping[str, np.ndarray]


def compute(rows: EvalSet, model: LiteModel) -> dict[str, list[np.ndarray]]:
    """Returns what `EvalSet.evaluate` takes, as a .tflite file computes it.

    Args:
      rows: N rows.
      model: The file.
    """
    outputs: dict[str, list] = {}
    count = len(rows.features)
    with progress.bar(count, "scoring the file", "row") as bar:
        for call in _calls(rows, model):
            answer = model.run(call.inputs)
            computed = rows.task.outputs(_as_of_model(rows.task, answer))
            for name, values in computed.items():
                of_rows = outputs.setdefault(name, [None] * count)
                for index, value in zip(
                    call.indices, np.asarray(values), strict=False
                ):
                    of_rows[index] = value
            bar.update(len(call.indices))
    return outputs


def _calls(rows: EvalSet, model: LiteModel) -> Iterator[_Call]:
    takes_ids = INPUT_IDS.name in model.inputs
    _, shape = next(iter(model.inputs.values()))
    count = len(rows.features)
    size = shape[0] if shape[0] > 0 else min(eval_set.BATCH_SIZE, count)
    if not takes_ids:
        for start in range(0, count, size):
            indices = np.arange(start, min(start + size, count))
            texts = [rows.examples[i] for i in np.resize(indices, size)]
            yield _Call(indices, _strings(texts, [*model.inputs]))
        return
    lengths = (shape[-1],) if shape[-1] > 0 else rows.lengths()
    for planned in length_buckets.prediction_batches(
        rows.features.lengths, size, lengths
    ):
        batch = rows.features.batch(
            np.resize(planned.indices, size), planned.length
        )
        inputs = {name: batch[name] for name in task_prediction.MODEL_INPUTS}
        yield _Call(planned.indices, inputs)


def _strings(examples: Sequence, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns <object>[B] of bytes for `text`, and for `text_pair`."""
    columns = {
        "text": [example.text_a for example in examples],
        "text_pair": [example.text_b for example in examples],
    }
    return {
        name: np.array([text.encode() for text in columns[name]], object)
        for name in names
    }


def _as_of_model(
    task: Task, answer: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """Returns what the model has computed that a head has answered.

    Logits may be what they are but for a number that is added to all of a row.

    Args:
      task: What is answered.
      answer: Tensors by name, as `Head.answer_ids` has them.
    """
    if any(name.endswith("logits") for name in answer):
        return answer
    if "score" in answer:
        return {"logits": answer["score"][..., np.newaxis]}
    probabilities = np.asarray(answer["probabilities"], np.float64)
    if (
        isinstance(task, ClassificationTask)
        and task.problem_type == "multi_label"
    ):
        logits = special.logit(np.clip(probabilities, _LEAST, 1 - 2**-53))
    else:
        logits = np.log(np.maximum(probabilities, _LEAST))
    return {"logits": logits}
