"""Chooses which parts of the training step XLA compiles (`--xla`).

- `step` compiles all that a device computes in a step, with all micro-batches,
  as one program, which needs known shapes and no strings. On a GPU a second
  program updates all weights, and collectives run between the two programs.
  With `--xla=on` on several GPUs, a single program also includes updates and
  collectives, and collectives overlap the backward pass.
- `chains` compiles only the operations between the matrix products
  (bert_tf/modeling/fused.py), and the update of each weight. On CPUs, `chains`
  is faster than `step`, as oneDNN's products are faster than XLA's. A compiled
  update returns the weight for TensorFlow to assign: XLA would copy it on CPUs.
- `off` compiles nothing.

Shapes:
  R: number of examples of a replica.
"""

import re
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.features import INPUT_IDS
from bert_tf.io import terminal
from bert_tf.training import optimizer as optimizers

OFF = "off"
CHAINS = "chains"
STEP = "step"

# The step is compiled again for each batch length, so by default batches have
# at most this number of different lengths.
_DEFAULT_LENGTHS = 4

# Error messages of the compiler match this pattern.
_COMPILER = re.compile(
    "to compile|tf2xla|compilation|ptxas|libdevice|autotuning|shared memory",
    re.IGNORECASE,
)
# Error messages of input, collectives and full disks match this pattern.
_OTHERS = re.compile(
    "IteratorGetNext|nccl|collective|no space left", re.IGNORECASE
)
# Lines that TensorFlow puts before a message begin with these: skip them.
_PLACES = ("Graph execution error", "Detected at node", "File ", "<stack ")

# `describe` finds compiled functions in a graph by these parts of their names.
_STEP_NAME = "compiled_step"
_PART_NAME = "compiled_part"


def choose(flag: str, kind: str, deterministic: bool = False) -> str:
    """Returns the part of the step to compile: "off", "chains" or "step".

    Args:
      flag: `--xla`: "auto", "on" or "off".
      kind: "CPU", "GPU" or "TPU".
      deterministic: Whether operations must be deterministic. Then "auto" on a
        GPU means "chains": as sorted scalar updates of XLA, the gradient of the
        word embeddings would take as long as the rest of the step.

    Raises:
      UserError: For "off" on a TPU.
    """
    if kind == "TPU":
        if flag == "off":
            raise UserError(
                "A TPU only runs what XLA compiles. Received: --xla=off; drop "
                "the flag."
            )
        return STEP
    suits = STEP if kind == "GPU" and not deterministic else CHAINS
    return {"off": OFF, "auto": suits, "on": STEP}[flag]


def max_lengths(
    flag: str, kind: str, deterministic: bool, num_length_buckets: int
) -> int:
    """Returns how many lengths batches may have; 0 means any number."""
    if num_length_buckets or choose(flag, kind, deterministic) != STEP:
        return 0
    terminal.detail(
        "Batches have at most %d lengths, as XLA compiles the step for each; "
        "--num_length_buckets sets another number.",
        _DEFAULT_LENGTHS,
    )
    return _DEFAULT_LENGTHS


class Compilation:
    """Compiles the computations of a device in a step.

    Args:
      flag: `--xla`.
      kind: "CPU", "GPU" or "TPU".
      row_shapes: A dict for each length of batches, in ascending order, with
        the row shape of each feature; by default all batches have one shape.
      deterministic: Whether operations must be deterministic.

    Attributes:
      mode: The result of `choose`; `fall_back` may change it.
    """

    def __init__(
        self,
        flag: str = "auto",
        kind: str = "CPU",
        row_shapes: Sequence[Mapping[str, Sequence[int]]] = (),
        deterministic: bool = False,
    ) -> None:
        self.mode = choose(flag, kind, deterministic)
        self._settings = f"--xla={flag}, {kind}"
        self._kind = kind
        self._row_shapes = row_shapes
        self._includes_collectives = flag == "on"

    @property
    def _compiles_step(self) -> bool:
        # The TPU strategy compiles everything itself, so wrap nothing for it.
        return self.mode == STEP and self._kind != "TPU"

    def check(self, num_local_devices: int) -> None:
        """Raises `UserError` if mode is "step" on logical devices of a CPU."""
        if self.mode == STEP and self._kind == "CPU" and num_local_devices > 1:
            raise UserError(
                "XLA treats a CPU as one device, so --xla=on cannot compile "
                f"the step for {num_local_devices} logical devices. Drop "
                "--xla=on or --num_gpus, or start a worker for each device "
                "(--distribution_strategy=multi_worker_mirrored)."
            )

    @property
    def updates_together(self) -> bool:
        """True if one program updates all weights."""
        return self.mode == STEP and self._kind != "CPU"

    @property
    def compiles_each_update(self) -> bool:
        """True if XLA compiles the update of each weight by itself."""
        return self.mode != OFF and not self.updates_together

    def includes_collectives(self, num_devices: int) -> bool:
        """Returns whether one program computes a step, with its collectives."""
        is_on = self.mode == STEP and self._includes_collectives
        return is_on and self._kind == "GPU" and num_devices > 1

    def fall_back(self, error: Exception, has_run: bool) -> bool:
        """Compiles the chains alone from now on, if that may avoid an error.

        `has_run` is true if a step has succeeded before. Returns True if `mode`
        is now "chains".
        """
        # CPUs and TPUs compile every step (see tests), so only GPUs need this.
        is_of_gpu = self._kind == "GPU" and self.mode == STEP
        if not is_of_gpu or not isinstance(error, tf.errors.OpError):
            return False
        # Compilers can fail in any step, as later steps may have new shapes.
        # Before the first success, unknown errors are taken for the compiler's.
        text = str(error)
        if _COMPILER.search(text) or not (has_run or _OTHERS.search(text)):
            self.mode = CHAINS
            return True
        return False

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function of a replica's rows, compiled if mode is "step".

        `function` takes the features of rows, [R, ...], and other tensors. The
        shapes of its results must not depend on the length of rows.
        """
        if self.mode != STEP:
            return function
        program = self._compile(function, _STEP_NAME)
        return self._by_length(program) if self._row_shapes else program

    def wrap_part(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function of a replica, compiled if `updates_together`.

        With a program for each weight, a GPU would take more time for the many
        small weights than for the few large weights.
        """
        if not self.updates_together:
            return function
        return self._compile(function, _PART_NAME)

    def _compile(self, function, name):
        if not self._compiles_step:
            return function

        def program(*args):
            return function(*args)

        program.__name__ = name
        return tf.function(program, jit_compile=True, autograph=False)

    def _by_length(self, program):
        """Returns a function with a program for each length of rows."""
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

    def describe(
        self, graph: tf.Graph, num_devices: int = 1, unpad: bool = False
    ) -> str:
        """Describes the compiled parts of the graph of a step.

        Each of the `num_devices` of this process has programs of its own.
        """
        names = compiled_functions(graph)
        steps = sum(_STEP_NAME in name for name in names) // num_devices
        updates = sum(optimizers.COMPILED_NAME in name for name in names)
        if not names and self.mode == STEP and not self._compiles_step:
            return f"XLA ({self._settings}): the whole step, by the device."
        parts = []
        if self.includes_collectives(num_devices):
            parts.append("the whole step of all devices, collectives included")
        elif steps:
            number = "1 program" if steps == 1 else f"{steps} programs"
            if unpad:
                number += " for each number of rows"
            parts.append(
                f"the whole step of a device ({number}), collectives "
                f"{'' if self.updates_together else 'and clipping '}outside"
            )
        elif len(names) > updates:
            parts.append("the chains between the matrix products")
        if updates:
            parts.append("the updates of the weights")
        elif any(_PART_NAME in name for name in names):
            parts.append("the updates of all weights, in one program")
        return f"XLA ({self._settings}): {'; '.join(parts) or 'nothing'}."


def compiled_functions(graph: tf.Graph) -> list[str]:
    """Returns the names of the functions of a graph that XLA compiles."""
    library = graph.as_graph_def().library
    return [
        function.signature.name
        for function in library.function
        if function.attr["_XlaMustCompile"].b
    ]


def reason(error: Exception) -> str:
    """Returns the compiler's line in an error message, or the first line."""
    lines = map(str.strip, str(error).splitlines())
    lines = [x for x in lines if x and not x.startswith(_PLACES)]
    return next(filter(_COMPILER.search, lines), lines[0])
