"""Measures latency and peak memory of .tflite files.

Memory is measured in a process that imports only this module, so it must not
import TensorFlow.

Shapes:
  B: rows of a call.
  T: tokens per row.
"""

import dataclasses
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.inference.lite_model import LiteModel

THREADS = (1, 2)
_ROUNDS = 8
_CALLS_PER_ROUND = 4
# For files with any number of choices, that of SWAG.
_CHOICES = 4
_STATUS_FILE = "/proc/self/status"
_PROGRAM = """
import json, sys
*arguments, sys.path[:] = json.loads(sys.argv[1])
from bert_tf.export.tflite import costs
print(json.dumps(costs.measure_here(*arguments)))
"""


@dataclasses.dataclass(frozen=True)
class Latency:
    """The latency of a call.

    Attributes:
      length: T.
      milliseconds: The median.
    """

    length: int
    threads: int
    milliseconds: float

    @property
    def setting(self) -> str:
        """The length and the number of threads, in words."""
        plural = "" if self.threads == 1 else "s"
        return f"{self.length} tokens, {self.threads} thread{plural}"


def measure_latencies(
    contents: Mapping[str, bytes],
    lengths: Sequence[int],
    text_operators: bool = False,
) -> dict[str, list[Latency]]:
    """Times files in turns, so that the machine is in the same state for all.

    Args:
      contents: Files with the same inputs, by name.
      lengths: The values of T to time; for rows of a fixed length, only that.
      text_operators: Whether the files may have TF-Text's operators.

    Returns:
      For each file, a latency for each number of threads and each length, of
      calls with one row, or with the fixed batch size of the files.
    """
    found: dict[str, list[Latency]] = {name: [] for name in contents}
    for threads in THREADS:
        models = {
            name: LiteModel(content, threads, text_operators)
            for name, content in contents.items()
        }
        for length in lengths:
            for name, seconds in _take_turns(models, length).items():
                found[name].append(
                    Latency(length, threads, 1e3 * statistics.median(seconds))
                )
    return found


def _take_turns(
    models: Mapping[str, LiteModel], length: int
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in models}
    names = [*models]
    for turn in range(_ROUNDS):
        for name in names[:: -1 if turn % 2 else 1]:
            inputs = request(models[name], length)
            models[name].run(inputs)  # Warms up the caches.
            for _ in range(_CALLS_PER_ROUND):
                start = time.perf_counter()
                models[name].run(inputs)
                seconds[name].append(time.perf_counter() - start)
    return seconds


def request(model: LiteModel, length: int) -> dict[str, np.ndarray]:
    """Returns arbitrary inputs of length T, with one row if possible."""
    takes_ids = INPUT_IDS.name in model.inputs
    inputs = {}
    for name, (_, shape) in model.inputs.items():
        free = (1, *[_CHOICES] * (len(shape) - 1))
        if takes_ids:
            free = (*free[:-1], length)
        sizes = [
            size if size > 0 else other
            for size, other in zip(shape, free, strict=True)
        ]
        if not takes_ids:
            # A letter is a token.
            inputs[name] = np.full(sizes, b"a " * length, object)
        elif name == INPUT_IDS.name:
            # All vocabularies have these ids.
            inputs[name] = np.resize(np.arange(1, 5, dtype=np.int32), sizes)
        else:
            inputs[name] = np.full(sizes, name == INPUT_MASK.name, np.int32)
    return inputs


def measure_peak_memory(
    content: bytes, length: int, text_operators: bool = False
) -> int | None:
    """Measures the peak memory of a file in a separate process.

    That is the memory that loading the file and calling it with one thread
    adds to a process with LiteRT and NumPy, including the file itself.

    Returns:
      Bytes; None if the system, unlike Linux, does not report them.
    """
    with tempfile.NamedTemporaryFile(suffix=".tflite") as file:
        file.write(content)
        file.flush()
        # A forked process would start with the memory of this one, and one of
        # `multiprocessing` would run the user's program again.
        arguments = [file.name, length, text_operators, sys.path]
        result = subprocess.run(
            [sys.executable, "-c", _PROGRAM, json.dumps(arguments)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(result.stdout.splitlines()[-1])


def measure_here(path: str, length: int, text_operators: bool) -> int | None:
    """Measures the peak memory of a file in this process, which has no other.

    Returns:
      Bytes, or None, as `measure_peak_memory` does.
    """
    before = _memory("VmRSS")
    with open(path, "rb") as file:
        model = LiteModel(file.read(), 1, text_operators)
    model.run(request(model, length))
    after = _memory("VmHWM")
    return None if before is None or after is None else after - before


def _memory(key: str) -> int | None:
    """Returns a value of this process's status on Linux, in bytes."""
    try:
        with open(_STATUS_FILE, encoding="utf-8") as file:
            status = file.read()
    except FileNotFoundError:
        return None
    return 1024 * int(re.search(rf"{key}:\s+(\d+) kB", status)[1])
