"""Reads what the CPU supports, without TensorFlow."""

# The names in `/proc/cpuinfo` of the units that multiply bfloat16. Without them
# bfloat16 is emulated, many times slower than float32.
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
_FLAGS_FILE = "/proc/cpuinfo"


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
