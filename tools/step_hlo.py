r"""Writes programs of a GPU's training step, for a GPU without TensorFlow.

  python tools/step_hlo.py base_128x256 large_512x32
  scp -r steps tools/time_step_hlo.py gpu:
  ssh gpu python time_step_hlo.py steps/*.pb     # Needs jax alone.

The arguments are model, tokens of a sequence and sequences of a step. A `.pb`
is the HLO of one step: counts, forward and backward pass, clipping and the
update of all weights. It is lowered for a CPU, because TensorFlow refuses to
lower variables for a missing GPU, but computes the losses as on a GPU. jax
compiles it for the GPU. A `.npz` has the batch, and the shape, dtype, mean and
deviation of each variable instead of its values.
"""

import json
import os

import numpy as np
from absl import app
from absl import flags

from benchmarks import pretraining_batches
from tools import lower_step
from tools import scaling_table

_PRECISION = flags.DEFINE_string(
    "mixed_precision", "bfloat16", "--mixed_precision of run/pretrain.py."
)
_OUTPUT = flags.DEFINE_string("output", "steps", "Folder of the programs.")


def main(argv):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.makedirs(_OUTPUT.value, exist_ok=True)
    for name in argv[1:]:
        size, shape = name.split("_")
        length, batch_size = map(int, shape.split("x"))
        devices, step, iterator = pretraining_batches.build_step(
            size,
            length,
            batch_size,
            "GPU",
            mixed_precision=_PRECISION.value,
            num_warmup_steps=10,
        )
        program, values, variables, _ = lower_step.lower(step, iterator)
        path = os.path.join(_OUTPUT.value, name)
        with open(f"{path}.pb", "wb") as file:
            file.write(program)
        flop = batch_size * scaling_table.operations(
            scaling_table.read_config(size),
            length,
            pretraining_batches.predictions_of(length),
        )
        about = {
            "name": f"{name}, {devices.precision.name}",
            "tokens": batch_size * length,
            "flop": flop,
            # Output 0 is a flag for finite numbers, so the metrics begin at 1.
            "loss": 1 + sorted(step._metric_names).index("loss"),
            "variables": [
                (x.shape, x.dtype.name, float(x.mean()), float(x.std()))
                for x in variables
            ],
        }
        np.savez(f"{path}.npz", *values, about=json.dumps(about))
        print(
            f"{path}.pb: {len(program) / 1e6:.1f} MB; {len(values)} parameters "
            f"and {len(variables)} variables; {flop / 1e12:.2f} TFLOP"
        )


if __name__ == "__main__":
    app.run(main)
