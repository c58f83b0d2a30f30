"""Builds the strategy of `--distribution_strategy` and sets up its devices."""

from collections.abc import Callable

import tensorflow as tf
from absl import logging

from bert_tf.distribute.cluster import Cluster
from bert_tf.errors import UserError


def build(
    name: str,
    num_devices: int = 0,
    tpu: str | None = None,
    cluster: Cluster | None = None,
) -> tf.distribute.Strategy:
    """Returns the strategy of `--distribution_strategy`.

    Call it before TensorFlow has touched a device: it sets how GPUs use memory
    and how many logical devices the CPU has. With several workers it waits
    until all of them have called it.

    Args:
      name: "auto", "one_device", "mirrored", "multi_worker_mirrored" or "tpu".
        "auto" is multi_worker_mirrored with several workers, mirrored with
        more than one GPU, else one_device.
      num_devices: GPUs to use, of each worker, or logical CPU devices where
        there is no GPU; 0 means all.
      tpu: Address of the TPU, for "tpu".
      cluster: The workers, which TF_CONFIG must name too; None for a run of
        one process.

    Raises:
      UserError: If there are fewer devices.
    """
    if name == "tpu":
        return _build_tpu_strategy(tpu)
    if cluster is not None:
        check_worker(num_devices, cluster)
        return _build_workers_strategy(num_devices)
    devices = _prepare_devices(name, num_devices)
    # The only worker of a cluster trains as a single machine does.
    if name in ("auto", "multi_worker_mirrored"):
        gpus = devices[0].startswith("GPU")
        several = gpus and len(devices) > 1
        name = "mirrored" if several else "one_device"
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy(devices[0])
    return tf.distribute.MirroredStrategy(devices)


def _prepare_devices(name: str, num_devices: int) -> list[str]:
    """Returns the names of the devices to use."""
    gpus = _prepare_gpus()
    if not gpus and name == "mirrored" and num_devices > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        if not tf.config.get_logical_device_configuration(cpu):
            logical = [tf.config.LogicalDeviceConfiguration()] * num_devices
            _configure(tf.config.set_logical_device_configuration, cpu, logical)
    kind = "GPU" if gpus else "CPU"
    present = len(tf.config.list_logical_devices(kind))
    if num_devices > present:
        raise UserError(
            f"--num_gpus={num_devices} is more than the devices present. "
            f"Found: {present} {kind}."
        )
    if name == "one_device" and num_devices > 1:
        raise UserError(
            "--distribution_strategy=one_device uses one device. Received: "
            f"--num_gpus={num_devices}; use --distribution_strategy=mirrored."
        )
    return [f"{kind}:{index}" for index in range(num_devices or present)]


def check_worker(num_devices: int, cluster: Cluster) -> None:
    """Checks, before the others wait for it, that a worker has the devices.

    Args:
      num_devices: GPUs to use; 0 means all.
      cluster: The workers.

    Raises:
      UserError: If there are fewer.
    """
    gpus = tf.config.list_physical_devices("GPU")
    present = len(gpus) or 1
    if num_devices > present:
        kind = "GPU" if gpus else "CPU"
        raise UserError(
            f"--num_gpus={num_devices} is more than the devices of "
            f"{cluster.name(cluster.index)}. Found: {present} {kind}."
        )


def _build_workers_strategy(num_devices: int) -> tf.distribute.Strategy:
    """Returns the strategy of several workers; blocks until they connect."""
    gpus = _prepare_gpus()
    if gpus and num_devices:
        _configure(tf.config.set_visible_devices, gpus[:num_devices], "GPU")
    implementations = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementations.NCCL if gpus else implementations.RING
    )
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=options
    )


def _prepare_gpus() -> list[tf.config.PhysicalDevice]:
    """Returns the GPUs, set up to allocate memory on demand."""
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        # By default TensorFlow reserves all memory of all GPUs at once.
        _configure(tf.config.experimental.set_memory_growth, gpu, True)
    return gpus


def _configure(setter: Callable[..., None], *arguments) -> None:
    try:
        setter(*arguments)
    except RuntimeError as error:
        # Devices that are already in use keep their settings.
        logging.debug("%s: %s", setter.__name__, error)


def _build_tpu_strategy(tpu: str | None) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=tpu or ""
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (OSError, ValueError, tf.errors.OpError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"No TPU answers at --tpu={tpu or ''!r} ({reason}); give its name "
            "or address, `local` on its own machine, or another "
            "--distribution_strategy."
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def device_type(strategy: tf.distribute.Strategy) -> str:
    """Returns the kind of device of a strategy: "CPU", "GPU" or "TPU"."""
    device = strategy.extended.worker_devices[0]
    return tf.DeviceSpec.from_string(device).device_type
