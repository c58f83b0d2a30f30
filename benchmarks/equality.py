"""Measures how far the golden model is from the original's outputs.

    python benchmarks/equality.py

The tests of equality only show that differences stay below a tolerance. This
script prints the largest differences, of layers with and without fused
operations, and keeps them in benchmarks/results/equality.json. It takes half a
minute, and needs only the clone.
"""

import json
import pathlib
import sys

import numpy as np

_ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

import tensorflow as tf  # noqa: E402

from bert_tf.modeling import bert as bert_model  # noqa: E402
from bert_tf.training import losses  # noqa: E402
from bert_tf.training import state as training_state  # noqa: E402
from tests.modeling import golden_model_test  # noqa: E402
from tests.support import golden_training  # noqa: E402
from tests.support.shared_data import golden  # noqa: E402

_RESULT = _ROOT / "benchmarks" / "results" / "equality.json"
_OBJECTIVE = losses.PretrainingObjective()


def _worst(received, expected, relative=True):
    """Returns the largest difference of two dicts of tensors.

    A relative difference is divided by the largest value of the original's
    tensor. Biases of keys are left out: their gradient is only rounding error.
    """
    if set(received) != set(expected):
        raise ValueError(f"Tensors differ: {set(received) ^ set(expected)}.")
    return max(
        float(np.abs(np.asarray(received[name]) - value).max())
        / (float(np.abs(value).max()) if relative else 1.0)
        for name, value in expected.items()
        if "key/bias" not in name and np.abs(value).max()
    )


def _inputs(batch):
    return {name: batch[name] for name in golden_model_test._INPUTS}


def measure_forward(fuse):
    """Returns the largest absolute difference of activations and losses."""
    stored = dict(np.load(golden("model/forward.npz")))
    outputs = golden_model_test._build(fuse)(_inputs(stored))
    received = golden_model_test._compute_losses(outputs, stored) | {
        "all_encoder_layers": tf.stack(outputs["encoder_outputs"]),
        "embedding_output": outputs["embedding_output"],
        "sequence_output": outputs["sequence_output"],
        "pooled_output": outputs["pooled_output"],
    }
    expected = {name: stored[name] for name in received}
    return {"activations": _worst(received, expected, relative=False)}


def measure_training(fuse):
    """Returns the largest differences of the gradients and of 25 steps."""
    model, optimizer = golden_training.build(fuse)
    batch = golden_training.read_batch()
    counts = _OBJECTIVE.count(batch)
    names = list(bert_model.named_variables(model))

    @tf.function(autograph=False)
    def compute():
        with tf.GradientTape() as tape:
            sums = _OBJECTIVE.compute_sums(model(_inputs(batch)), batch)
            loss = _OBJECTIVE.normalize(sums, counts)["loss"]
        named = bert_model.named_variables(model).values()
        return loss, tape.gradient(loss, [v.value for v in named])

    stored = np.load(golden("model/gradients.npz"))
    expected = {name.replace("|", "/"): stored[name] for name in stored.files}
    values = []
    for step in range(25):
        loss, gradients = compute()
        if step == 0:
            received = dict(zip(names, gradients, strict=True))
            worst_gradient = _worst(received, expected)
        values.append(float(loss))
        variables = list(bert_model.named_variables(model).values())
        optimizer.apply(gradients, variables)
    trajectory = golden_training.read_trajectory()["losses_before_each_step"]
    state = training_state.read(bert_model.named_variables(model), optimizer)
    after = golden_training.read_checkpoint("after_25_steps.ckpt")
    return {
        "gradients": worst_gradient,
        "losses_of_25_steps": float(
            np.max(np.abs(np.array(values) / trajectory - 1))
        ),
        "state_after_25_steps": _worst(state, after),
    }


def main() -> None:
    """Measures, prints and keeps the differences."""
    both = [measure_forward(x) | measure_training(x) for x in (False, True)]
    result = {name: max(x[name] for x in both) for name in both[0]}
    result["tensorflow"] = tf.__version__
    text = json.dumps(result, indent=1) + "\n"
    _RESULT.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
