r"""Writes the program of a GPU's training step, for a GPU without TensorFlow.

  python tools/step_hlo.py --size=base --batch_size=256 --output=step
  scp step.pb step.npz tools/time_step_hlo.py gpu:
  ssh gpu python time_step_hlo.py step     # Needs jax alone.

`step.pb` is the HLO of one step: counts, forward and backward pass, clipping
and the update of all weights. It is lowered for a CPU, as TensorFlow refuses to
lower a step with variables for a GPU that is not there, but computes the losses
as on a GPU; jax compiles it for the GPU. `step.npz` has the batch and sizes.
"""

import os

import numpy as np
from absl import app
from absl import flags

from benchmarks import pretraining_batches
from tools import scaling_table

_SIZE = flags.DEFINE_enum("size", "base", ["tiny", "base", "large"], "Model.")
_LENGTH = flags.DEFINE_integer("length", 128, "Tokens of a sequence.")
_BATCH = flags.DEFINE_integer("batch_size", 256, "Sequences of a step.")
_MICRO = flags.DEFINE_string("micro_batch_size", "0", "As of run/pretrain.py.")
_PRECISION = flags.DEFINE_string(
    "mixed_precision", "bfloat16", "--mixed_precision of run/pretrain.py."
)
_OUTPUT = flags.DEFINE_string("output", "step", "Path without .pb and .npz.")


def lower(step, iterator):
    """Returns the serialized HLO of a step and its first parameters.

    The parameters after these are the variables.

    Args:
      step: A `TrainingStep`.
      iterator: Its batches.
    """
    import tensorflow as tf

    program = tf.function(step._replica_step, jit_compile=True, autograph=False)
    metrics = dict.fromkeys(step._metric_names, tf.constant(0.0))
    arguments = (next(iterator), tf.constant(True), metrics)
    lowered = program.experimental_get_compiler_ir(*arguments)
    values = [x.numpy() for x in tf.nest.flatten(arguments)]
    return lowered(stage="hlo_serialized"), values


def main(argv):
    del argv
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    devices, step, iterator = pretraining_batches.build_step(
        _SIZE.value,
        _LENGTH.value,
        _BATCH.value,
        "GPU",
        mixed_precision=_PRECISION.value,
        micro_batch_size=_MICRO.value,
    )
    program, values = lower(step, iterator)
    with open(f"{_OUTPUT.value}.pb", "wb") as file:
        file.write(program)
    flop = _BATCH.value * scaling_table.operations(
        scaling_table.read_config(_SIZE.value),
        _LENGTH.value,
        pretraining_batches.predictions_of(_LENGTH.value),
    )
    np.savez(
        f"{_OUTPUT.value}.npz",
        *values,
        tokens=_BATCH.value * _LENGTH.value,
        flop=flop,
        description=f"{_SIZE.value}, {_BATCH.value} x {_LENGTH.value}, "
        f"{devices.precision.name}",
    )
    print(
        f"{_OUTPUT.value}.pb: {len(program) / 1e6:.1f} MB; {len(values)} "
        f"parameters and the variables; {flop / 1e12:.2f} TFLOP"
    )


if __name__ == "__main__":
    app.run(main)
