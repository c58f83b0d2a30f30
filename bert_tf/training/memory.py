"""Estimates the memory of a training step, and what there is.

The estimate counts the tensors that the backward pass needs. It is meant to
choose a micro-batch that fits, not to be exact.

Shapes:
  B: examples computed at once.
  S: sequence length.
  P: predictions per sequence.
  H: hidden size.
  I: intermediate size.
  N: attention heads.
  V: vocabulary size.
"""

import dataclasses
import shutil
import subprocess

from bert_tf.config import BertConfig

# Of what is free now, the share to plan with; the rest is for the input
# pipeline, the allocator's gaps and other programs.
_USABLE_SHARE = 0.8
# Weight, gradient and the optimizer's two slots, and the gradients' sum over
# micro-batches; float32.
_BYTES_PER_WEIGHT = 4 * 5
_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


# Tokens at once beyond which a CPU gets no faster, only fuller.
_CPU_TOKENS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a step takes on one device.

    Attributes:
      fixed: Weights, gradients and optimizer state.
      per_example: What each example computed at once adds.
    """

    fixed: int
    per_example: int

    def total(self, micro_batch_size: int) -> int:
        """Returns the bytes of a step with micro-batches of that size."""
        return self.fixed + self.per_example * micro_batch_size

    def largest_micro_batch(
        self, num_examples: int, available: int, most: int | None = None
    ) -> int:
        """Returns the largest divisor of `num_examples` that fits, at least 1.

        Args:
          num_examples: Examples of a replica and step.
          available: Bytes.
          most: The largest that is of use; None means any.
        """
        usable = available * _USABLE_SHARE
        fitting = [
            size
            for size in range(1, min(num_examples, most or num_examples) + 1)
            if num_examples % size == 0 and self.total(size) <= usable
        ]
        return max(fitting, default=1)


def largest_useful_micro_batch(device: str, max_seq_length: int) -> int | None:
    """Returns the examples that keep a device busy, or None for all it can.

    Args:
      device: "CPU", "GPU" or "TPU".
      max_seq_length: S.
    """
    if device != "CPU":
        return None
    return max(1, _CPU_TOKENS_AT_ONCE // max_seq_length)


def estimate(
    config: BertConfig,
    num_weights: int,
    max_seq_length: int,
    max_predictions_per_seq: int,
    activation_bytes: int = 4,
) -> MemoryEstimate:
    """Estimates the memory of a training step.

    Args:
      config: The shape of the model.
      num_weights: Its parameters.
      max_seq_length: S.
      max_predictions_per_seq: P.
      activation_bytes: Bytes of a number in the encoder: 4, or 2 in half
        precision.
    """
    tokens = max_seq_length
    hidden, inner = config.hidden_size, config.intermediate_size
    # What the fused chains keep for the backward pass, in which they compute
    # the rest again: query, key, value, context, three products and sums.
    rows = tokens * (7 * hidden + 2 * inner)
    # Scores, and probabilities after dropout.
    squares = 2 * config.num_attention_heads * tokens * tokens
    layers = config.num_hidden_layers * (rows + squares) * activation_bytes
    # Logits, their softmax and gradient, always float32.
    logits = 3 * 4 * max_predictions_per_seq * config.vocab_size
    # The widest gradient of a layer, before it is added up.
    transient = (rows + squares) * activation_bytes
    return MemoryEstimate(
        fixed=num_weights * _BYTES_PER_WEIGHT,
        per_example=layers + logits + transient,
    )


def available_bytes(device_type: str) -> int | None:
    """Returns the bytes that a device has free now, or None if unknown.

    Args:
      device_type: "CPU" or "GPU"; nothing is known of a TPU.
    """
    if device_type == "GPU":
        return _free_gpu_bytes()
    return _free_ram_bytes() if device_type == "CPU" else None


def _free_ram_bytes() -> int | None:
    free = []
    try:
        with open("/proc/meminfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    free.append(int(line.split()[1]) * 1024)
    except OSError:
        return None
    for limit_file, usage_file in _CGROUP_LIMITS:
        try:
            limit, usage = _read_number(limit_file), _read_number(usage_file)
        except (OSError, ValueError):
            continue  # No such limit: "max", or another kind of cgroup.
        free.append(limit - usage)
    return max(min(free), 0) if free else None


def _read_number(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        return int(file.read())


def _free_gpu_bytes() -> int | None:
    """Asks the driver, as TensorFlow does not tell."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    answer = subprocess.run(
        [command, "--query-gpu=memory.free", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        return None
    return min(int(line) for line in answer.stdout.split()) << 20
