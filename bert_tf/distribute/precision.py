"""Compute precision: chosen by the hardware, or by `--mixed_precision`."""

import dataclasses

import tensorflow as tf

from bert_tf.distribute import cpu

_BFLOAT16_CAPABILITY = (8, 0)  # Ampere
_FLOAT16_CAPABILITY = (7, 0)  # Volta

_POLICIES = {
    "float32": "float32",
    "bfloat16": "mixed_bfloat16",
    "float16": "mixed_float16",
}


@dataclasses.dataclass(frozen=True)
class Precision:
    """A compute precision and why it was chosen.

    Attributes:
      name: "float32", "bfloat16" or "float16".
    """

    name: str
    reason: str

    @property
    def policy(self) -> str:
        """The Keras dtype policy; weights stay float32 in each."""
        return _POLICIES[self.name]

    @property
    def needs_loss_scale(self) -> bool:
        """True if small gradients underflow, as with 5 exponent bits."""
        return self.name == "float16"


def _gpu_capability() -> tuple[int, int] | None:
    """Returns the lowest compute capability of the GPUs, or None."""
    capabilities = []
    for gpu in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        capabilities.append(details.get("compute_capability", (0, 0)))
    return min(capabilities) if capabilities else None


def _choose_precision(device_type: str) -> Precision:
    """Returns the fastest precision the hardware supports."""
    if device_type == "TPU":
        return Precision("bfloat16", "TPUs compute in bfloat16")
    if device_type == "GPU":
        capability = _gpu_capability() or (0, 0)
        name = "float32"
        if capability >= _BFLOAT16_CAPABILITY:
            name = "bfloat16"
        elif capability >= _FLOAT16_CAPABILITY:
            name = "float16"
        version = ".".join(map(str, capability))
        return Precision(name, f"the GPU has compute capability {version}")
    flags = cpu.bfloat16_flags()
    if flags:
        return Precision("bfloat16", f"the CPU has {', '.join(flags)}")
    return Precision(
        "float32",
        f"the CPU has none of {', '.join(cpu.BFLOAT16_FLAGS)}",
    )


def resolve_precision(flag: str, device_type: str) -> Precision:
    """Turns `--mixed_precision` into the compute precision.

    Args:
      flag: "float32", "bfloat16", "float16" or "auto".
      device_type: "CPU", "GPU" or "TPU".
    """
    if flag == "auto":
        return _choose_precision(device_type)
    if flag == "bfloat16" and device_type == "CPU":
        fastest = _choose_precision(device_type)
        if fastest.name == "float32":
            return Precision(
                "float32",
                f"--mixed_precision=bfloat16 is not used, as {fastest.reason} "
                "and would only emulate it",
            )
    return Precision(flag, f"--mixed_precision={flag}")


def has_tensor_float_32(kind: str) -> bool:
    """Returns whether the devices can multiply in TF32."""
    capability = _gpu_capability() if kind == "GPU" else None
    return capability is not None and capability >= _BFLOAT16_CAPABILITY
