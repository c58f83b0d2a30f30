"""Cluster startup: waits until all workers of a run are running.

TensorFlow waits for them too, but it logs nothing, ignores signals, and accepts
whatever listens at an address as the worker that belongs there. So each worker
first greets all others with a line of JSON: its index and the addresses of all
workers. It continues when every other worker has answered or greeted it.
"""

import json
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from absl import logging

from bert_tf.distribute.cluster import Cluster
from bert_tf.errors import Preempted
from bert_tf.errors import UserError

# For a connection, for an answer to a greeting, and for one attempt to accept a
# connection, in seconds.
_SECONDS_TO_CONNECT = 2.0
_SECONDS_TO_ANSWER = 10.0
_SECONDS_TO_LISTEN = 0.2
# A greeting holds the addresses of all workers.
_MAX_BYTES = 1 << 20


def wait_for_all(
    cluster: Cluster, reminder_seconds: float = 60.0, poll_seconds: float = 0.5
) -> None:
    """Waits until all workers are running, and logs which are missing.

    Raises:
      UserError: If this worker cannot listen at its port, or another worker
        was given other addresses or the same index.
      Preempted: If a waiting worker got SIGTERM.
    """
    next_reminder = time.monotonic()
    with _Meeting(cluster) as meeting:
        try:
            while missing := meeting.greet_missing():
                if time.monotonic() >= next_reminder:
                    next_reminder = time.monotonic() + reminder_seconds
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
    """Listens at this worker's address and greets the other workers.

    Raises:
      UserError: If this worker cannot listen at its address.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._others = {*range(cluster.num_workers)} - {cluster.index}
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
        """Greets the workers that have not been met yet.

        Returns:
          Index to reason, for each worker that is still missing.
        """
        reasons = {
            index: self._greet(index)
            for index in sorted(self._others - self._met)
        }
        if self._failure is not None:
            raise self._failure
        return {i: x for i, x in reasons.items() if i not in self._met}

    def broadcast_stop(self) -> None:
        """Reports to all running workers that this one has to stop."""
        for index in self._others:
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
        with caller:
            caller.settimeout(_SECONDS_TO_ANSWER)
            try:
                self._send(caller, stop)
                answer = _receive(caller)
            except OSError:
                answer = None
        if answer is None:
            return "where another program answers, or an earlier run is ending"
        self._meet(answer, index)
        return ""

    def _receive_all(self) -> None:
        """Answers greetings until the meeting is over."""
        while not self._is_over.is_set():
            try:
                caller = self._listener.accept()[0]
            except OSError:  # A timeout, or the caller is gone already.
                continue
            with caller:
                caller.settimeout(_SECONDS_TO_CONNECT)
                try:
                    greeting = _receive(caller)
                    if greeting is None:
                        continue
                    self._send(caller)
                except OSError:  # The caller is gone, and will retry.
                    continue
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
        """Records a worker, or the failure that its greeting means.

        Args:
          greeting: The greeting of that worker.
          expected: The worker at the address that was called; None if that
            worker called.
        """
        index, hosts = greeting["index"], greeting["hosts"]
        is_valid = index in self._others and expected in (None, index)
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
    try:
        if socket.has_dualstack_ipv6():
            listener = socket.create_server(
                address, family=socket.AF_INET6, dualstack_ipv6=True
            )
        else:
            listener = socket.create_server(address)
    except OSError as error:
        raise UserError(
            f"Worker {cluster.index} cannot listen at {host} ({error}); check "
            "whether another program uses the port, or an earlier run has not "
            "ended yet."
        ) from error
    listener.settimeout(_SECONDS_TO_LISTEN)
    return listener


def _receive(caller: socket.socket) -> dict[str, Any] | None:
    """Reads a greeting; returns None if the line is not one."""
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
