"""How the workers of a run find each other, before TensorFlow connects them.

TensorFlow waits for them too, but says nothing, heeds no signal, and takes
whatever listens at an address for the worker that belongs there. So each worker
greets all others first, by a line of JSON with who it is and who it thinks the
others are. It goes on when all have answered, or greeted it.
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

# For a connection, for an answer to a greeting, and between two looks whether
# to go on listening, in seconds.
_SECONDS_TO_CONNECT = 2.0
_SECONDS_TO_ANSWER = 10.0
_SECONDS_TO_LISTEN = 0.2
# A greeting names all workers.
_MOST_BYTES = 1 << 20


def wait_for_all(
    cluster: Cluster, reminder_seconds: float = 60.0, poll_seconds: float = 0.5
) -> None:
    """Waits until all workers are there, and says for whom it waits.

    Args:
      cluster: The workers.
      reminder_seconds: Time between two lines of the log, in seconds.
      poll_seconds: Time between two looks, in seconds.

    Raises:
      UserError: If this worker cannot listen at its port, or another one was
        told of other workers, or that it is this one.
      Preempted: If one of those that wait was asked to stop (SIGTERM).
    """
    next_reminder = time.monotonic()
    with _Meeting(cluster) as meeting:
        try:
            while missing := meeting.greet_missing():
                if time.monotonic() >= next_reminder:
                    next_reminder = time.monotonic() + reminder_seconds
                    logging.info(
                        "Waiting for %d of %d workers: %s. Each is started "
                        "with the same command but for its own --task_index "
                        "(or TF_CONFIG).",
                        len(missing),
                        cluster.num_workers,
                        "; ".join(
                            f"{cluster.name(index)}, {reason}"
                            for index, reason in missing.items()
                        ),
                    )
                time.sleep(poll_seconds)
        except Preempted:
            meeting.say_stop()
            raise
    logging.info("All %d workers are there.", cluster.num_workers)


class _Meeting:
    """Listens at this worker's address, and calls at those of the others.

    Args:
      cluster: The workers.

    Raises:
      UserError: If this worker cannot listen.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._others = {*range(cluster.num_workers)} - {cluster.index}
        self._known: set[int] = set()
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
        """Greets those who are not known yet.

        Returns:
          Who is still missing, and why.
        """
        reasons = {
            index: self._greet(index)
            for index in sorted(self._others - self._known)
        }
        if self._failure is not None:
            raise self._failure
        return {i: x for i, x in reasons.items() if i not in self._known}

    def say_stop(self) -> None:
        """Tells all that are there that this worker was asked to stop."""
        for index in self._others:
            self._greet(index, stop=True)

    def _greet(self, index: int, stop: bool = False) -> str:
        """Greets a worker; returns why it is not there, if it is not."""
        address = _split(self._cluster.hosts[index])
        try:
            caller = socket.create_connection(address, _SECONDS_TO_CONNECT)
        except socket.gaierror:
            return "whose name is not known"
        except OSError:
            return "where nobody answers"
        with caller:
            caller.settimeout(_SECONDS_TO_ANSWER)
            try:
                self._send(caller, stop)
                answer = _receive(caller)
            except OSError:
                answer = None
        if answer is None:
            return "where another program answers, or an earlier run ends"
        self._meet(answer, index)
        return ""

    def _receive_all(self) -> None:
        """Answers whoever calls, until the meeting is over."""
        while not self._is_over.is_set():
            try:
                caller = self._listener.accept()[0]
            except OSError:  # Nobody in time, or gone already.
                continue
            with caller:
                caller.settimeout(_SECONDS_TO_CONNECT)
                try:
                    greeting = _receive(caller)
                    if greeting is None:
                        continue
                    self._send(caller)
                except OSError:  # It has gone, and will call again.
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
        """Notes who has come.

        Args:
          greeting: What that worker says.
          expected: Who listens where it was called; None if it called.
        """
        index, hosts = greeting["index"], greeting["hosts"]
        is_right = index in self._others and expected in (None, index)
        if not is_right or tuple(hosts) != self._cluster.hosts:
            self._failure = UserError(
                "All workers must have the same --worker_hosts, in the same "
                "order, and each its own --task_index (or TF_CONFIG that says "
                f"so). This one is worker {self._cluster.index} of "
                f"{','.join(self._cluster.hosts)}, and another one says that "
                f"it is worker {index} of {','.join(map(str, hosts))}."
            )
        elif greeting["stop"]:
            self._failure = Preempted(
                "Stopped, as another worker was asked to (SIGTERM) before all "
                "were there; start the same command on all workers again."
            )
        else:
            self._known.add(index)


def _listen(cluster: Cluster) -> socket.socket:
    """Returns a socket at which this worker can be greeted."""
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
    listener.settimeout(_SECONDS_TO_LISTEN)
    return listener


def _receive(caller: socket.socket) -> dict[str, Any] | None:
    """Returns a greeting; None if what is said is none."""
    with caller.makefile("rb") as stream:
        line = stream.readline(_MOST_BYTES)
    try:
        greeting = json.loads(line)
    except ValueError:
        return None
    match greeting:
        case {"index": int(), "hosts": [*_], "stop": bool()}:
            return greeting
    return None


def _split(host: str) -> tuple[str, int]:
    """Returns name, without the brackets of IPv6, and port."""
    name, _, port = host.rpartition(":")
    return name.strip("[]"), int(port)
