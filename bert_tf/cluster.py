"""Who the workers of a run are: --worker_hosts, or TF_CONFIG."""

import contextlib
import dataclasses
import json
import os
import socket
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import MutableMapping

from absl import logging

from bert_tf.errors import Preempted
from bert_tf.errors import UserError
from bert_tf.run_config import DeviceConfig

_VARIABLE = "TF_CONFIG"
_ROLES = ("chief", "worker")
_STRATEGY = "multi_worker_mirrored"
# What a worker that is to stop says to those that wait.
_STOP = b"bert_tf: stop"
# How long one that has called may take to say something, in seconds.
_SECONDS_TO_SPEAK = 0.2


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers of a run.

    Attributes:
      hosts: The address of each, as host:port; the chief's is the first.
      index: Which of them this one is.
    """

    hosts: tuple[str, ...]
    index: int

    @property
    def is_chief(self) -> bool:
        """Whether this one writes what all have computed."""
        return self.index == 0

    @property
    def num_workers(self) -> int:
        """How many there are."""
        return len(self.hosts)

    def name(self, index: int) -> str:
        """Returns what messages call a worker."""
        role = "the chief, at" if index == 0 else "at"
        return f"worker {index} ({role} {self.hosts[index]})"


def find(
    flags: DeviceConfig, environment: Mapping[str, str] = os.environ
) -> Cluster | None:
    """Finds the workers in the flags or, without them, in TF_CONFIG.

    Args:
      flags: The flags.
      environment: Where TF_CONFIG is.

    Returns:
      They; None for a run of one process, also if that is the only worker.

    Raises:
      UserError: If TF_CONFIG cannot be used, says something else than the
        flags, or names several workers for a strategy of one; if an address
        cannot be one; if there must be workers and nobody names them.
    """
    told = _read_variable(environment.get(_VARIABLE, ""))
    asked = None
    if flags.worker_hosts is not None:
        hosts = tuple(map(str.strip, flags.worker_hosts.split(",")))
        asked = Cluster(hosts, flags.task_index)
    if asked and told and asked != told:
        raise UserError(
            f"--worker_hosts and --task_index say {asked}, and {_VARIABLE} "
            f"says {told}; use one of the two."
        )
    found = asked or told
    if found is None and flags.distribution_strategy == _STRATEGY:
        raise UserError(
            f"--distribution_strategy={_STRATEGY} must be told who the workers "
            "are: --worker_hosts=HOST:PORT,HOST:PORT and --task_index, or "
            f"{_VARIABLE}; for the devices of one machine use mirrored."
        )
    if found is None or found.num_workers == 1:
        return None
    _check_hosts(found.hosts)
    if flags.distribution_strategy not in ("auto", _STRATEGY):
        raise UserError(
            f"{_VARIABLE} names {found.num_workers} workers, of which "
            f"--distribution_strategy={flags.distribution_strategy} would let "
            f"each train for itself; use {_STRATEGY}, or unset {_VARIABLE}."
        )
    return found


def _check_hosts(hosts: tuple[str, ...]) -> None:
    """Refuses addresses for which TensorFlow would wait for ever."""
    for host in hosts:
        name, _, port = host.rpartition(":")
        if not name or not port.isdigit() or not 0 < int(port) < 65536:
            raise UserError(
                "The address of a worker must be HOST:PORT. Received: "
                f"{host!r} in {','.join(hosts)}."
            )
        if hosts.count(host) > 1:
            raise UserError(
                "Each worker needs an address of its own. Received twice: "
                f"{host}."
            )


def _read_variable(text: str) -> Cluster | None:
    """Returns what TF_CONFIG says; None if it is not set."""
    if not text:
        return None
    try:
        config = json.loads(text)
        jobs, task = config["cluster"], config["task"]
        hosts = [host for role in _ROLES for host in jobs.get(role, [])]
        index = int(task["index"])
        role = task["type"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{_VARIABLE} must be JSON with a cluster of workers and a task, "
            'as {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": '
            f'"worker", "index": 0}}}}. Received: {text!r}.'
        ) from error
    strangers = sorted({*jobs, role} - set(_ROLES))
    if strangers or not 0 <= index < len(jobs.get(role, [])):
        raise UserError(
            f"{_VARIABLE} must name workers, with or without a chief, and the "
            f"task must be one of them. Received: {text!r}."
        )
    if role == "worker":
        index += len(jobs.get("chief", []))
    return Cluster(tuple(hosts), index)


def export(
    cluster: Cluster, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Writes TF_CONFIG, from which TensorFlow learns of the workers."""
    environment[_VARIABLE] = json.dumps(
        {
            "cluster": {"worker": list(cluster.hosts)},
            "task": {"type": "worker", "index": cluster.index},
        }
    )


def wait_for_all(
    cluster: Cluster, reminder_seconds: float = 60.0, poll_seconds: float = 0.5
) -> None:
    """Waits until all workers can be reached, and says whom it waits for.

    TensorFlow waits too, but says nothing, and lets no other thread speak.

    Args:
      cluster: The workers.
      reminder_seconds: Time between two lines of the log, in seconds.
      poll_seconds: Time between two looks, in seconds.

    Raises:
      UserError: If this worker cannot listen at its port.
      Preempted: If one of those that wait was asked to stop (SIGTERM).
    """
    others = [i for i in range(cluster.num_workers) if i != cluster.index]
    next_reminder = time.monotonic()
    with _listen(cluster) as listener, _telling(cluster, others):
        while True:
            missing = [i for i in others if not _answers(cluster.hosts[i])]
            if not missing:
                break
            if time.monotonic() >= next_reminder:
                next_reminder = time.monotonic() + reminder_seconds
                logging.info(
                    "Waiting for %d of %d workers: %s. Each is started with "
                    "the same command but for its own --task_index (or "
                    "TF_CONFIG).",
                    len(missing),
                    cluster.num_workers,
                    ", ".join(cluster.name(index) for index in missing),
                )
            time.sleep(poll_seconds)
            _let_in(listener)
    logging.info("All %d workers are there.", cluster.num_workers)


def _listen(cluster: Cluster) -> socket.socket:
    """Returns a socket at which this worker can be seen to be there."""
    host = cluster.hosts[cluster.index]
    address = ("", _split(host)[1])
    try:
        if socket.has_dualstack_ipv6():
            listener = socket.create_server(
                address, family=socket.AF_INET6, dualstack_ipv6=True
            )
        else:
            listener = socket.create_server(address)
    except OSError as error:
        raise UserError(
            f"Worker {cluster.index} cannot listen at {host} ({error}); is "
            "another program using the port, or an earlier run still ending?"
        ) from error
    listener.setblocking(False)
    return listener


def _answers(host: str) -> bool:
    """Returns whether a program listens at HOST:PORT."""
    try:
        socket.create_connection(_split(host), timeout=2).close()
    except OSError:
        return False
    return True


def _let_in(listener: socket.socket) -> None:
    """Takes in who has called, as the queue is short, and hears them out."""
    while True:
        try:
            caller = listener.accept()[0]
        except BlockingIOError:
            return
        with caller:
            caller.settimeout(_SECONDS_TO_SPEAK)
            try:
                words = caller.recv(len(_STOP))
            except OSError:  # It only looked whether this one is there.
                continue
        if words == _STOP:
            raise Preempted(
                "Stopped, as another worker was asked to (SIGTERM) before all "
                "were there; start the same command on all workers again."
            )


@contextlib.contextmanager
def _telling(cluster: Cluster, others: list[int]) -> Iterator[None]:
    """Tells those that wait, too, if this worker is to stop."""
    try:
        yield
    except Preempted:
        for index in others:
            # Who is not there need not be told.
            with contextlib.suppress(OSError):
                address = _split(cluster.hosts[index])
                with socket.create_connection(address, timeout=2) as caller:
                    caller.sendall(_STOP)
        raise


def _split(host: str) -> tuple[str, int]:
    """Returns name, without the brackets of IPv6, and port."""
    name, _, port = host.rpartition(":")
    return name.strip("[]"), int(port)
