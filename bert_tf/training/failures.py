"""What errors of TensorFlow mean to who trains, in a sentence."""

import tensorflow as tf

from bert_tf.errors import UserError

# How allocators say that there is no memory left; the same class of error says
# that a disk is full.
_OUT_OF_MEMORY = ("oom when allocating", "out of memory")


def out_of_memory(error: Exception, numbers: str) -> UserError | None:
    """Returns what to say when memory did not suffice.

    Args:
      error: What training raised.
      numbers: What was estimated, what is there, and what to change.

    Returns:
      The error to raise instead; None if memory was not the reason.
    """
    if not isinstance(error, tf.errors.ResourceExhaustedError | MemoryError):
        return None
    text = str(error)
    is_tensor = any(sign in text.lower() for sign in _OUT_OF_MEMORY)
    if not is_tensor and not isinstance(error, MemoryError):
        return None
    reason = _sentence(text) or "no memory left"
    return UserError(f"Out of memory ({reason}): {numbers}")


def _sentence(text: str) -> str:
    """Returns the line that says what could not be allocated."""
    for line in text.splitlines():
        if any(sign in line.lower() for sign in _OUT_OF_MEMORY):
            start = min(
                line.lower().find(sign)
                for sign in _OUT_OF_MEMORY
                if sign in line.lower()
            )
            return line[start:].strip().rstrip(".")
    return text.strip().split("\n")[0]
