"""Cluster of a run: resolved from --worker_hosts or TF_CONFIG, then started.

TensorFlow also waits for all workers, but it logs nothing, ignores signals, and
accepts any program that listens at a worker's address. So each worker first
sends all others a greeting, a line of JSON with its index and all addresses. A
worker continues when every other worker has sent a greeting or an answer.
"""

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from collections.abc import MutableMapping
from typing import Any

from absl import logging

from bert_tf.errors import Preempted
from bert_tf.errors import UserError
from bert_tf.flags.groups import DeviceConfig

_VARIABLE = "TF_CONFIG"
_ROLES = ("chief", "worker")
_STRATEGY = "multi_worker_mirrored"
# Timeouts in seconds: to connect to a worker, to receive its answer, and to
# wait for a connection before checking whether to stop listening.
_SECONDS_TO_CONNECT = 2.0
_SECONDS_TO_ANSWER = 10.0
_SECONDS_TO_LISTEN = 0.2
_SECONDS_TO_REMIND = 60.0  # Between messages that list the missing workers.
# Maximum bytes of a greeting; a greeting has the addresses of all workers.
_MAX_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers of a run.

    Attributes:
      hosts: The addresses of the workers, as host:port; the chief is first.
    """

    hosts: tuple[str, ...]
    index: int

    @property
    def is_chief(self) -> bool:
        """True for the worker that writes the files of the run."""
        return self.index == 0

    @property
    def num_workers(self) -> int:
        return len(self.hosts)

    @property
    def others(self) -> list[int]:
        return [i for i in range(self.num_workers) if i != self.index]

    def name(self, index: int) -> str:
        """Returns a worker's name for messages."""
        role = "the chief, at" if index == 0 else "at"
        return f"worker {index} ({role} {self.hosts[index]})"


def find(
    flags: DeviceConfig, environment: Mapping[str, str] = os.environ
) -> Cluster | None:
    """Finds the workers in the flags or, without them, in TF_CONFIG.

    Returns None for a run of one process. Raises `UserError` if an address is
    malformed, flags and TF_CONFIG differ, or the strategy does not fit the
    number of workers.
    """
    from_variable = _read_variable(environment.get(_VARIABLE, ""))
    from_flags = None
    if flags.worker_hosts is not None:
        hosts = tuple(map(str.strip, flags.worker_hosts.split(",")))
        from_flags = Cluster(hosts, flags.task_index)
    if from_flags and from_variable and from_flags != from_variable:
        raise UserError(
            f"--worker_hosts and --task_index give {from_flags}, and "
            f"{_VARIABLE} gives {from_variable}; use one of the two."
        )
    cluster = from_flags or from_variable
    if cluster is None and flags.distribution_strategy == _STRATEGY:
        raise UserError(
            f"--distribution_strategy={_STRATEGY} needs worker addresses: "
            "give --worker_hosts=HOST:PORT,HOST:PORT and --task_index, or "
            f"{_VARIABLE}; for the devices of one machine use mirrored."
        )
    if cluster is None or cluster.num_workers == 1:
        return None
    _check_hosts(cluster.hosts)
    if flags.distribution_strategy not in ("auto", _STRATEGY):
        raise UserError(
            f"{_VARIABLE} names {cluster.num_workers} workers, but "
            f"--distribution_strategy={flags.distribution_strategy} would let "
            f"each train alone; use {_STRATEGY}, or unset {_VARIABLE}."
        )
    return cluster


def _check_hosts(hosts: tuple[str, ...]) -> None:
    """Refuses addresses at which TensorFlow would wait forever."""
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
    """Parses TF_CONFIG; returns None if it is not set."""
    if not text:
        return None
    try:
        config = json.loads(text)
        jobs, task = config["cluster"], config["task"]
        hosts = [host for role in _ROLES for host in jobs.get(role, [])]
        index = int(task["index"])
        role = task["type"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise UserError(
            f"{_VARIABLE} must be JSON with a cluster of workers and a task, "
            'as {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": '
            f'"worker", "index": 0}}}}. Received: {text!r} ({reason}).'
        ) from error
    others = sorted({*jobs, role} - {*_ROLES})
    if others:
        raise UserError(
            f"{_VARIABLE} must name workers, with or without a chief, and no "
            f"parameter servers or others. Received: {', '.join(others)}, "
            f"in {text!r}."
        )
    if not 0 <= index < len(jobs.get(role, [])):
        raise UserError(
            f"The task of {_VARIABLE} must be one of its cluster, which has "
            f"{len(jobs.get(role, []))} of the type {role!r}. Received: the "
            f"index {index}, in {text!r}."
        )
    if role == "worker":
        index += len(jobs.get("chief", []))
    return Cluster(tuple(hosts), index)


def export(
    cluster: Cluster, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Writes the cluster to TF_CONFIG, where TensorFlow reads it."""
    environment[_VARIABLE] = json.dumps(
        {
            "cluster": {"worker": list(cluster.hosts)},
            "task": {"type": "worker", "index": cluster.index},
        }
    )


def wait_for_all(cluster: Cluster, poll_seconds: float = 0.5) -> None:
    """Waits until all workers are running, and logs which are missing.

    Raises `UserError` if this worker cannot listen at its port, or if another
    worker has other addresses or the same index. Raises `Preempted` if any
    worker gets SIGTERM meanwhile.
    """
    next_reminder = time.monotonic()
    with _Meeting(cluster) as meeting:
        try:
            while missing := meeting.greet_missing():
                if time.monotonic() >= next_reminder:
                    next_reminder = time.monotonic() + _SECONDS_TO_REMIND
                    logging.info(
                        "Waiting for %d of %d workers: %s. Start each with the "
                        "same command and its own --task_index (or "
                        "TF_CONFIG).",
                        len(missing),
                        cluster.num_workers,
                        "; ".join(
                            f"{cluster.name(index)}, {reason}"
                            for index, reason in missing.items()
                        ),
                    )
                time.sleep(poll_seconds)
        except Preempted:
            meeting.broadcast_stop()
            raise
    logging.info("All %d workers are running.", cluster.num_workers)


class _Meeting:
    """Listens at this worker's address and greets the other workers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._met: set[int] = set()
        self._failure: Exception | None = None
        self._listener = _listen(cluster)
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._receive_all, name="rendezvous", daemon=True
        )

    def __enter__(self) -> "_Meeting":
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._is_over.set()
        self._thread.join()
        self._listener.close()

    def greet_missing(self) -> dict[int, str]:
        """Greets the missing workers; returns why each is still missing."""
        missing = [i for i in self._cluster.others if i not in self._met]
        reasons = {index: self._greet(index) for index in missing}
        if self._failure is not None:
            raise self._failure
        return {i: x for i, x in reasons.items() if i not in self._met}

    def broadcast_stop(self) -> None:
        """Reports to all running workers that this worker has to stop."""
        for index in self._cluster.others:
            self._greet(index, stop=True)

    def _greet(self, index: int, stop: bool = False) -> str:
        """Greets a worker; returns why it is missing, or an empty string."""
        address = _split(self._cluster.hosts[index])
        try:
            caller = socket.create_connection(address, _SECONDS_TO_CONNECT)
        except socket.gaierror:
            return "whose host name is unknown"
        except OSError:
            return "which does not respond yet"
        answer = None
        with caller, contextlib.suppress(OSError):
            caller.settimeout(_SECONDS_TO_ANSWER)
            self._send(caller, stop)
            answer = _receive(caller)
        if answer is None:
            return "where another program answers, or an earlier run is ending"
        self._meet(answer, index)
        return ""

    def _receive_all(self) -> None:
        """Answers greetings until the meeting is over."""
        while not self._is_over.is_set():
            # Ignore timeouts and lost connections, as callers connect again.
            with (
                contextlib.suppress(OSError),
                self._listener.accept()[0] as caller,
            ):
                caller.settimeout(_SECONDS_TO_CONNECT)
                if greeting := _receive(caller):
                    self._send(caller)
                    self._meet(greeting)

    def _send(self, caller: socket.socket, stop: bool = False) -> None:
        greeting = {
            "index": self._cluster.index,
            "hosts": self._cluster.hosts,
            "stop": stop,
        }
        caller.sendall(json.dumps(greeting).encode() + b"\n")

    def _meet(
        self, greeting: Mapping[str, Any], expected: int | None = None
    ) -> None:
        """Records the worker of a greeting, or why the run cannot start.

        `expected` is the index of the worker that was called, if any.
        """
        index, hosts = greeting["index"], greeting["hosts"]
        is_valid = index in self._cluster.others and expected in (None, index)
        if not is_valid or tuple(hosts) != self._cluster.hosts:
            self._failure = UserError(
                "All workers must have the same --worker_hosts, in the same "
                "order, and each its own --task_index (or the same in "
                f"TF_CONFIG). This one is worker {self._cluster.index} of "
                f"{','.join(self._cluster.hosts)}, and another one reports "
                f"that it is worker {index} of {','.join(map(str, hosts))}."
            )
        elif greeting["stop"]:
            self._failure = Preempted(
                "Stopped because another worker got SIGTERM before all workers "
                "were running; rerun the same command on all workers."
            )
        else:
            self._met.add(index)


def _listen(cluster: Cluster) -> socket.socket:
    """Returns a socket that accepts greetings at this worker's port."""
    host = cluster.hosts[cluster.index]
    address = ("", _split(host)[1])
    both = {"family": socket.AF_INET6, "dualstack_ipv6": True}
    try:
        listener = socket.create_server(
            address, **both if socket.has_dualstack_ipv6() else {}
        )
    except OSError as error:
        raise UserError(
            f"Worker {cluster.index} cannot listen at {host} ({error}); check "
            "whether another program uses the port, or an earlier run has not "
            "ended yet."
        ) from error
    listener.settimeout(_SECONDS_TO_LISTEN)
    return listener


def _receive(caller: socket.socket) -> dict[str, Any] | None:
    """Reads a greeting; returns None for any other line."""
    with caller.makefile("rb") as stream:
        line = stream.readline(_MAX_BYTES)
    try:
        greeting = json.loads(line)
    except ValueError:
        return None
    match greeting:
        case {"index": int(), "hosts": [*_], "stop": bool()}:
            return greeting
    return None


def _split(host: str) -> tuple[str, int]:
    """Returns the host name, without the brackets of IPv6, and the port."""
    name, _, port = host.rpartition(":")
    return name.strip("[]"), int(port)
