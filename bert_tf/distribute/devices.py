"""Sets up the devices of a run: strategy, workers and compute precision."""

import contextlib
import dataclasses
import faulthandler
import os
import signal
import threading
import types
from collections.abc import Callable
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from bert_tf.distribute import cluster as clusters
from bert_tf.distribute import health as worker_health
from bert_tf.distribute import packed_weights
from bert_tf.distribute.cluster import Cluster
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.errors import UserError
from bert_tf.errors import first_line
from bert_tf.flags.groups import DeviceConfig
from bert_tf.io import terminal

# Flags and values that have an effect only with --do_train.
_OF_STEPS = {"all_reduce_dtype": "bfloat16", "remat": True, "xla": "on"}
# Seconds in which all running workers must connect. TensorFlow alone would wait
# an hour for a worker that has just ended.
_SECONDS_TO_CONNECT = 180
_BFLOAT16_CAPABILITY = (8, 0)  # Ampere, the first with bfloat16.
_FLOAT16_CAPABILITY = (7, 0)  # Volta, the first with fast float16.

# Messages to log, by whether operations are deterministic.
_DETERMINISM = {
    True: "Operations are deterministic: on the same devices a run that "
    "resumes computes the same numbers as one that was not interrupted.",
    False: "Operations are not deterministic: a run that resumes has the same "
    "batches, masks and dropout, but its sums may be rounded in another "
    "way; --deterministic repeats them bit for bit, at a cost on GPUs.",
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
        """The Keras dtype policy; weights stay float32 in every policy."""
        return "float32" if self.name == "float32" else f"mixed_{self.name}"

    @property
    def needs_loss_scale(self) -> bool:
        """True for float16, as its 5 exponent bits let gradients underflow."""
        return self.name == "float16"


@dataclasses.dataclass(frozen=True)
class Devices:
    """The devices of a run, its compute precision and its workers.

    Attributes:
      kind: "CPU", "GPU" or "TPU".
      coordinator: Synchronizes the workers and exchanges values between them.
      cluster: The workers; None for a run of one process.
      xla: The value of --xla; "auto" in scripts without that flag.
      deterministic: Whether operations repeat their results bit for bit.
      all_reduce_dtype: The dtype in which gradients are summed over devices.
    """

    strategy: tf.distribute.Strategy
    kind: str
    precision: Precision
    coordinator: Coordinator
    cluster: Cluster | None = None
    xla: str = "auto"
    deterministic: bool = True
    all_reduce_dtype: str = "float32"

    @property
    def fuse(self) -> bool:
        """True if the operations between matrix products are compiled."""
        # On a TPU the whole step is compiled, so its parts need no compilation.
        return self.kind != "TPU" and self.xla != "off"

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Makes all workers end together; see `health.together`.

        Raises `UserError` if workers differ in the kind of device or precision.
        """
        with worker_health.together(self.cluster, self.coordinator):
            self.coordinator.agree(
                {"the device": self.kind, "the precision": self.precision.name},
                "kind of device, and precision",
                "give --mixed_precision=float32 or bfloat16 in place of auto, "
                "or use machines of one kind",
            )
            yield


def prepare(flags: DeviceConfig) -> Devices:
    """Chooses and logs the devices, the precision and determinism.

    Waits until all workers are running. Call it before TensorFlow computes
    anything. Raises `UserError` for missing devices or wrong flags, and
    `Preempted` if a worker gets SIGTERM meanwhile.
    """
    cluster = clusters.find(flags)
    if cluster is not None:
        _prefix_log(cluster)
        # Hide TensorFlow's INFO messages about each collective operation.
        tf.get_logger().setLevel(logging.converter.STANDARD_WARNING)
        check_worker(flags.num_gpus, cluster)
        clusters.wait_for_all(cluster)
        clusters.export(cluster)
    with _connecting() if cluster else contextlib.nullcontext():
        strategy = build_strategy(
            "tpu" if flags.use_tpu else flags.distribution_strategy,
            flags.num_gpus,
            flags.tpu or flags.tpu_name,
            cluster,
        )
    kind = device_type(strategy)
    deterministic = flags.deterministic
    if deterministic is None:
        deterministic = kind != "GPU"
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    if flags.tensor_float_32 is not None:
        tf.config.experimental.enable_tensor_float_32_execution(
            flags.tensor_float_32
        )
    precision = resolve_precision(flags.mixed_precision, kind)
    devices = Devices(
        strategy,
        kind,
        precision,
        Coordinator(strategy, cluster),
        cluster,
        # Prediction scripts have no --xla and --all_reduce_dtype.
        getattr(flags, "xla", "auto"),
        deterministic,
        getattr(flags, "all_reduce_dtype", "float32"),
    )
    for warning in _without_effect(flags, devices):
        logging.warning("%s", warning)
    logging.info(
        "Devices: %d %s%s (%s), by %s; precision %s (%s).",
        strategy.num_replicas_in_sync,
        kind,
        f" of {cluster.num_workers} workers" if cluster else "",
        ", ".join(map(_name_device, strategy.extended.worker_devices)),
        type(strategy).__name__,
        precision.name,
        precision.reason,
    )
    terminal.detail("%s", _DETERMINISM[deterministic])
    if has_tensor_float_32(kind):
        is_used = tf.config.experimental.tensor_float_32_execution_enabled()
        terminal.detail(
            "Products of float32 are computed in %s.",
            "TF32, with 10 bits after the point; --notensor_float_32 uses 23"
            if is_used
            else "float32 (--notensor_float_32)",
        )
    return devices


def _without_effect(flags: DeviceConfig, devices: Devices) -> Iterator[str]:
    """Yields a warning for each flag without effect on these devices."""
    kind, dtype = devices.kind, devices.all_reduce_dtype
    if flags.tpu_name and kind != "TPU":
        yield "--tpu_name has no effect without --use_tpu."
    if flags.tensor_float_32 is not None and not has_tensor_float_32(kind):
        yield "--tensor_float_32 has no effect: only GPUs since Ampere have it."
    if not getattr(flags, "do_train", True):
        for name, value in _OF_STEPS.items():
            if getattr(flags, name) == value:
                yield f"--{name} has no effect without --do_train."
    if kind == "TPU" and devices.xla == "on":
        yield "--xla=on has no effect: a TPU only runs what XLA compiles."
    is_single = devices.strategy.num_replicas_in_sync == 1
    if dtype != "float32" and is_single:
        yield f"--all_reduce_dtype={dtype} has no effect on one device."


def _name_device(name: str) -> str:
    """Returns a device's short name, "CPU:0", with the model of a GPU."""
    spec = tf.DeviceSpec.from_string(name)
    short = f"{spec.device_type}:{spec.device_index}"
    gpus = tf.config.list_physical_devices(spec.device_type)
    if spec.device_type != "GPU" or spec.device_index >= len(gpus):
        return short
    details = tf.config.experimental.get_device_details(gpus[spec.device_index])
    return f"{short} {details.get('device_name', '')}".strip()


@contextlib.contextmanager
def _connecting() -> Iterator[None]:
    """Ends the process on signals, or if the workers do not connect in time.

    No Python code runs while TensorFlow connects. So signals get the system's
    handlers, and a C thread of `faulthandler` ends the process after a timeout.
    """
    logging.info(
        "Connecting. If that takes more than %d s, because another worker has "
        "ended, this one exits with status 1; rerun it then.",
        _SECONDS_TO_CONNECT,
    )
    is_main = threading.current_thread() is threading.main_thread()
    before = {
        number: signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT)
        if is_main
    }
    with open(os.devnull, "w", encoding="utf-8") as null:
        faulthandler.dump_traceback_later(
            _SECONDS_TO_CONNECT, exit=True, file=null
        )
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            for number, handler in before.items():
                signal.signal(number, handler)


def _prefix_log(cluster: Cluster) -> None:
    """Starts each line of the log with the index of this worker."""
    handler, start = logging.get_absl_handler().python_handler, cluster.index
    show = handler.formatter.format
    handler.setFormatter(
        types.SimpleNamespace(format=lambda x: f"[worker {start}] {show(x)}")
    )


def build_strategy(
    name: str,
    num_devices: int = 0,
    tpu: str | None = None,
    cluster: Cluster | None = None,
) -> tf.distribute.Strategy:
    """Returns the strategy of `--distribution_strategy`.

    Call this function before TensorFlow uses a device, otherwise GPU memory
    growth and the number of logical CPU devices cannot be set. It waits until
    all workers have called it.

    Args:
      name: "auto", "one_device", "mirrored", "multi_worker_mirrored" or "tpu".
        "auto" is multi_worker_mirrored with several workers, mirrored with
        several GPUs, else one_device.
      num_devices: Number of GPUs to use on each worker; without GPUs, number
        of logical CPU devices; 0 means all.
      tpu: Address of the TPU, for "tpu".
      cluster: The workers, which must be in TF_CONFIG and must have passed
        `check_worker`; None for a run of one process.

    Raises:
      UserError: If devices are missing, or "one_device" gets several devices.
    """
    if name == "tpu":
        return _build_tpu_strategy(tpu)
    if cluster is not None:
        return _build_workers_strategy(num_devices)
    devices = _prepare_devices(name, num_devices)
    # A single worker has no cluster: treat multi_worker_mirrored like auto.
    if name in ("auto", "multi_worker_mirrored"):
        has_gpus = devices[0].startswith("GPU") and len(devices) > 1
        name = "mirrored" if has_gpus else "one_device"
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy(devices[0])
    return tf.distribute.MirroredStrategy(devices)


def _prepare_devices(name: str, num_devices: int) -> list[str]:
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
            f"Found: {present} {kind}. To split a CPU for a test, add "
            "--distribution_strategy=mirrored."
        )
    if name == "one_device" and num_devices > 1:
        raise UserError(
            "--distribution_strategy=one_device uses one device. Received: "
            f"--num_gpus={num_devices}; use --distribution_strategy=mirrored."
        )
    return [f"{kind}:{index}" for index in range(num_devices or present)]


def check_worker(num_devices: int, cluster: Cluster) -> None:
    """Raises `UserError` if this worker has fewer than `num_devices` devices.

    Call this function before the workers wait for each other.
    """
    gpus = tf.config.list_physical_devices("GPU")
    present, kind = len(gpus) or 1, "GPU" if gpus else "CPU"
    if num_devices > present:
        raise UserError(
            f"--num_gpus={num_devices} is more than the devices of "
            f"{cluster.name(cluster.index)}. Found: {present} {kind}."
        )


def _build_workers_strategy(num_devices: int) -> tf.distribute.Strategy:
    """Returns the strategy of several workers; waits until all connect."""
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
        # Without memory growth, TensorFlow reserves all memory of all GPUs.
        _configure(tf.config.experimental.set_memory_growth, gpu, True)
    return gpus


def _configure(setter: Callable[..., None], *arguments) -> None:
    try:
        setter(*arguments)
    except RuntimeError as error:
        # TensorFlow does not change devices in use: keep their settings.
        logging.debug("%s: %s", setter.__name__, error)


def _build_tpu_strategy(tpu: str | None) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=tpu or ""
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise UserError(
            f"No TPU answers at --tpu={tpu or ''!r} ({first_line(error)}); "
            "give its name or address, `local` on its own machine, or another "
            "--distribution_strategy."
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def device_type(strategy: tf.distribute.Strategy) -> str:
    """Returns the kind of device of a strategy: "CPU", "GPU" or "TPU"."""
    device = strategy.extended.worker_devices[0]
    return tf.DeviceSpec.from_string(device).device_type


def _gpu_capability() -> tuple[int, int] | None:
    """Returns the lowest compute capability of the GPUs; None without GPUs."""
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
        name = "float16" if capability >= _FLOAT16_CAPABILITY else "float32"
        if capability >= _BFLOAT16_CAPABILITY:
            name = "bfloat16"
        version = ".".join(map(str, capability))
        return Precision(name, f"the GPU has compute capability {version}")
    flags = packed_weights.bfloat16_flags()
    if flags:
        return Precision("bfloat16", f"the CPU has {', '.join(flags)}")
    names = ", ".join(packed_weights.BFLOAT16_FLAGS)
    # cpu.flags took 1.4 times as long in float32 on a CPU that has bfloat16.
    longer = "steps take about 1.4 times as long as in bfloat16"
    return Precision("float32", f"the CPU has none of {names}; {longer}")


def resolve_precision(flag: str, device_type: str) -> Precision:
    """Resolves `--mixed_precision` for a kind of device, such as "CPU"."""
    fastest = _choose_precision(device_type)
    if flag == "auto":
        return fastest
    if (flag, device_type, fastest.name) == ("bfloat16", "CPU", "float32"):
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
