"""Free memory of the machine and of its GPUs."""

import os
import pathlib
import re
import resource
import shutil
import subprocess
from collections.abc import Sequence

import psutil

_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


def available_bytes(device_type: str) -> int | None:
    """Returns the free bytes of a device, or None if unknown."""
    if device_type == "GPU":
        return _free_gpu_bytes()
    return _free_ram_bytes() if device_type == "CPU" else None


def _free_ram_bytes() -> int:
    free = [psutil.virtual_memory().available]
    for limit_file, usage_file in _CGROUP_LIMITS:
        try:
            limit, usage = (
                int(pathlib.Path(path).read_text())
                for path in (limit_file, usage_file)
            )
        except (OSError, ValueError):
            continue  # No limit ("max"), or another version of cgroups.
        free.append(limit - usage + _reclaimable(usage_file))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:  # `ulimit -v`.
        free.append(limit - psutil.Process().memory_info().vms)
    return max(min(free), 0)


def _reclaimable(usage_file: str) -> int:
    """Returns the bytes of cached files, which the kernel frees on demand."""
    statistics = os.path.join(os.path.dirname(usage_file), "memory.stat")
    try:
        with open(statistics, encoding="utf-8") as file:
            values = dict(line.split() for line in file)
    except (OSError, ValueError):
        return 0
    # In version 1 of cgroups the total includes the groups below.
    name = "total_inactive_file"
    return int(values.get(name, values.get("inactive_file", 0)))


def _free_gpu_bytes() -> int | None:
    """Queries the driver, as TensorFlow does not report free memory."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "")
    names = [name for name in visible.split(",") if name]
    if any(name.startswith("MIG-") for name in names):
        free = _free_mig_mebibytes(names)
    else:
        answer = _ask_nvidia_smi(
            "--query-gpu=memory.free,mig.mode.current",
            "--format=csv,noheader,nounits",
            *([f"--id={visible}"] * bool(names)),
        )
        # CUDA opens one part of a GPU; this is the memory of all.
        free = "" if "Enabled" in answer else re.sub(",.*", "", answer)
    numbers = free.split()
    # A GPU that shares the memory of the machine reports no number.
    if not numbers or not all(map(str.isdecimal, numbers)):
        return None
    return min(map(int, numbers)) << 20


def _free_mig_mebibytes(names: Sequence[str]) -> str:
    """Returns the free memory of parts of GPUs; empty if unknown.

    `nvidia-smi --id` takes no names of parts. Its list has their names, and its
    XML their memory, in the same order.

    Args:
      names: The beginnings of names, as "MIG-c6d4f1ef-42e4".
    """
    listed = re.findall(r"\(UUID: (MIG-[^)]+)\)", _ask_nvidia_smi("-L"))
    free = re.findall(
        r"<mig_device>.*?<fb_memory_usage>.*?<free>(\d+) MiB</free>",
        _ask_nvidia_smi("-q", "-x"),
        re.DOTALL,
    )
    if len(listed) != len(free):
        return ""
    return " ".join(
        number
        for name, number in zip(listed, free, strict=True)
        if name.startswith(tuple(names))
    )


def _ask_nvidia_smi(*arguments: str) -> str:
    """Returns what the driver's program prints; empty if it fails."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    answer = subprocess.run(
        [command, *arguments], capture_output=True, text=True, check=False
    )
    return "" if answer.returncode else answer.stdout
