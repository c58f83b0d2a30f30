"""bfloat16 on CPUs: detects support, and packs weights for prediction.

oneDNN multiplies weights in its own packed layout. TensorFlow packs weights
again in each call (170 MB for BERT-base), unless an environment variable
promises that weights never change. Each operation then keeps the weights of its
first call, so training would silently compute with the weights of its first
step. In float32, packed weights only make products slower. TensorFlow reads the
variable at its first product, so set it before TensorFlow is imported.
"""

import os
import sys

from bert_tf.errors import UserError
from bert_tf.io import terminal

VARIABLE = "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"
# CPU flags in `/proc/cpuinfo` for bfloat16 multiplication. A CPU with neither
# flag emulates bfloat16, many times slower than float32.
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
_FLAGS_FILE = "/proc/cpuinfo"


def assume() -> None:
    """Makes TensorFlow keep packed weights, unless the user set the variable.

    Does nothing after TensorFlow is imported, because the process may train.
    """
    if VARIABLE not in os.environ and "tensorflow" not in sys.modules:
        os.environ[VARIABLE] = "1"
        terminal.detail(
            "Weights are packed once for bfloat16 (%s=1).", VARIABLE
        )


def are_assumed() -> bool:
    """Returns True if this process keeps packed weights."""
    # TensorFlow treats only these values as true.
    return os.environ.get(VARIABLE, "").lower() in ("1", "true")


def refuse() -> None:
    """Raises `UserError` if weights are packed: updates would be ignored."""
    if are_assumed():
        raise UserError(
            f"Expected {VARIABLE} to be unset where a model's weights may "
            "change: TensorFlow would ignore each update of them. Received: "
            f"{VARIABLE}={os.environ[VARIABLE]}; unset it and rerun the same "
            "command."
        )


def bfloat16_flags() -> list[str]:
    """Returns this machine's CPU flags for bfloat16; empty without support."""
    try:
        with open(_FLAGS_FILE, encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("flags")]
    except OSError:
        return []
    present = set(lines[0].split()) if lines else set()
    return [flag for flag in BFLOAT16_FLAGS if flag in present]


def computes_in_bfloat16(flag: str) -> bool:
    """Returns True if --mixed_precision=`flag` uses bfloat16 on this CPU."""
    return flag in ("auto", "bfloat16") and bool(bfloat16_flags())
