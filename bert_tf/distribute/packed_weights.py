"""bfloat16 on CPUs: its units, and packed weights where nothing trains.

oneDNN multiplies weights in a layout of its own. TensorFlow makes that layout
again in each call, of 170 MB for BERT-base, unless an environment variable
promises that no weight changes. An operation then keeps the weights that it
read first, whatever happens to the variable behind them: training would go on
with the values of its first step, without an error. In float32 products with
packed weights are slower. TensorFlow reads the variable once, at its first
product, so a process sets it before it imports TensorFlow.
"""

import os
import sys

from bert_tf.errors import UserError
from bert_tf.io import terminal

VARIABLE = "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"
# The names in `/proc/cpuinfo` of the units that multiply bfloat16. Without them
# bfloat16 is emulated, many times slower than float32.
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
_FLAGS_FILE = "/proc/cpuinfo"


def assume() -> None:
    """Makes TensorFlow keep packed weights, unless the user set the variable.

    Does nothing in a process that has imported TensorFlow, and so may train.
    """
    if VARIABLE not in os.environ and "tensorflow" not in sys.modules:
        os.environ[VARIABLE] = "1"
        terminal.detail(
            "Weights are packed once for bfloat16 (%s=1).", VARIABLE
        )


def are_assumed() -> bool:
    """Returns True if this process keeps packed weights."""
    # The values that TensorFlow takes for true.
    return os.environ.get(VARIABLE, "").lower() in ("1", "true")


def refuse() -> None:
    """Refuses packed weights where the weights of a model may change.

    Raises:
      UserError: If the variable is set.
    """
    if are_assumed():
        raise UserError(
            f"Expected {VARIABLE} to be unset where a model's weights may "
            "change: TensorFlow would ignore each update of them. Received: "
            f"{VARIABLE}={os.environ[VARIABLE]}; unset it and rerun the same "
            "command."
        )


def bfloat16_flags() -> list[str]:
    """Returns the bfloat16 units of this machine's CPU."""
    try:
        with open(_FLAGS_FILE, encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("flags")]
    except OSError:
        return []
    present = set(lines[0].split()) if lines else set()
    return [flag for flag in BFLOAT16_FLAGS if flag in present]


def computes_in_bfloat16(flag: str) -> bool:
    """Returns True if products on the CPU are in bfloat16.

    Args:
      flag: The value of --mixed_precision.
    """
    return flag in ("auto", "bfloat16") and bool(bfloat16_flags())
