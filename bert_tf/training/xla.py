"""What of a training step XLA compiles: `--xla`.

`step`: one program for all that a device computes of a step, forward, backward
and micro-batches, as a TPU wants it: of known shapes, without strings. What
crosses devices stays outside, as do clipping and the loop over steps.
`chains`: what stands between the matrix products (bert_tf/modeling/fused.py),
which on CPUs is faster, as oneDNN's products are faster than XLA's.
Either way each weight's update is a program. `off`: nothing is compiled.

Shapes:
  R: examples of a replica.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.errors import UserError
from bert_tf.features import INPUT_IDS
from bert_tf.training import update_rule

OFF = "off"
CHAINS = "chains"
STEP = "step"

# How many lengths a compiled step has programs for, where the user leaves it
# open; each takes its time to compile.
_DEFAULT_LENGTHS = 4

# In the names of functions, by which the graph tells what is compiled.
_STEP_NAME = "compiled_step"


def choose(asked: str, kind: str) -> str:
    """Returns what to compile: "off", "chains" or "step".

    Args:
      asked: `--xla`: "auto", "on" or "off".
      kind: "CPU", "GPU" or "TPU".

    Raises:
      UserError: If nothing is to be compiled on a TPU.
    """
    if kind == "TPU":
        if asked == "off":
            raise UserError(
                "A TPU runs only what XLA has compiled. Received: --xla=off; "
                "drop the flag."
            )
        return STEP
    return {"off": OFF, "auto": CHAINS, "on": STEP}[asked]


def most_lengths(asked: str, kind: str, num_length_buckets: int) -> int:
    """Returns how many lengths batches may have, 0 for any number.

    Args:
      asked: `--xla`.
      kind: "CPU", "GPU" or "TPU".
      num_length_buckets: `--num_length_buckets`, 0 if that leaves it open.
    """
    if num_length_buckets or choose(asked, kind) != STEP:
        return 0
    logging.info(
        "Batches have at most %d lengths, as XLA compiles a step for each; "
        "--num_length_buckets may say another number.",
        _DEFAULT_LENGTHS,
    )
    return _DEFAULT_LENGTHS


class Compilation:
    """Compiles what a device computes of a step.

    Args:
      asked: `--xla`.
      kind: "CPU", "GPU" or "TPU".
      row_shapes: Feature to the shape of its rows, for each length that
        batches may have, rising; by default all batches have one shape.

    Attributes:
      mode: What is compiled: "off", "chains" or "step".
    """

    def __init__(
        self,
        asked: str = "auto",
        kind: str = "CPU",
        row_shapes: Sequence[Mapping[str, Sequence[int]]] = (),
    ) -> None:
        self.mode = choose(asked, kind)
        self._asked = f"--xla={asked}, {kind}"
        self._kind = kind
        # A TPU's strategy compiles what it runs by itself.
        self._compiles_step = self.mode == STEP and kind != "TPU"
        self._row_shapes = row_shapes

    def check(self, num_local_devices: int) -> None:
        """Makes sure that the devices of this process can run it.

        Args:
          num_local_devices: How many they are.

        Raises:
          UserError: If they are parts of one CPU.
        """
        if (
            self._compiles_step
            and self._kind == "CPU"
            and (num_local_devices > 1)
        ):
            raise UserError(
                "XLA knows a CPU as one device, so --xla=on cannot compile "
                f"the step for {num_local_devices} parts of it. Drop "
                "--xla=on or --num_gpus, or start a worker for each part "
                "(--distribution_strategy=multi_worker_mirrored)."
            )

    @property
    def compiles_updates(self) -> bool:
        """Whether the update of each weight is a program."""
        return self.mode != OFF

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function of a replica's rows, compiled if it is to be.

        Args:
          function: Takes the features of rows, [R, ...], and further tensors;
            what it returns has the same shapes whatever the length.
        """
        if self.mode != STEP:
            return function

        def compiled_step(*args):
            return function(*args)

        program = compiled_step
        if self._compiles_step:
            program = tf.function(
                compiled_step, jit_compile=True, autograph=False
            )
        if not self._row_shapes:
            return program
        return self._by_length(program)

    def _by_length(self, program):
        """Returns a function that has a program for each length."""
        lengths = [shapes[INPUT_IDS.name][-1] for shapes in self._row_shapes]

        def run(shapes, rows, others):
            rows = {
                name: tf.ensure_shape(
                    value, [value.shape[0], *shapes.get(name, value.shape[1:])]
                )
                for name, value in rows.items()
            }
            return program(rows, *others)

        def choose_program(rows, *others):
            if len(lengths) == 1:
                return run(*self._row_shapes, rows, others)
            length = tf.shape(rows[INPUT_IDS.name])[-1]
            return tf.switch_case(
                tf.searchsorted(lengths, [length])[0],
                [
                    lambda shapes=shapes: run(shapes, rows, others)
                    for shapes in self._row_shapes
                ],
            )

        return choose_program

    def describe(self, graph: tf.Graph) -> str:
        """Returns what is compiled in the graph of a step, to read.

        Args:
          graph: Of the loop over steps.
        """
        names = compiled_functions(graph)
        steps = [name for name in names if _STEP_NAME in name]
        updates = [name for name in names if update_rule.COMPILED_NAME in name]
        if not names and not self._compiles_step and self.mode == STEP:
            return f"XLA ({self._asked}): the whole step, by the device."
        parts = []
        if steps:
            number = (
                "1 program" if len(steps) == 1 else f"{len(steps)} programs"
            )
            parts.append(
                f"the whole step of a device ({number}), collectives and "
                "clipping outside"
            )
        elif len(names) > len(updates):
            parts.append("the chains between the matrix products")
        if updates:
            parts.append("the updates of the weights")
        return f"XLA ({self._asked}): {'; '.join(parts) or 'nothing'}."


def compiled_functions(graph: tf.Graph) -> list[str]:
    """Returns the names of those functions of a graph that XLA compiles."""
    library = graph.as_graph_def().library
    return [
        function.signature.name
        for function in library.function
        if function.attr["_XlaMustCompile"].b
    ]
