"""Resolves the cluster from --worker_hosts or TF_CONFIG."""

import dataclasses
import json
import os
from collections.abc import Mapping
from collections.abc import MutableMapping

from bert_tf.errors import UserError
from bert_tf.flags.devices import DeviceConfig

_VARIABLE = "TF_CONFIG"
_ROLES = ("chief", "worker")
_STRATEGY = "multi_worker_mirrored"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers of a run.

    Attributes:
      hosts: The workers' addresses, as host:port; the chief's is the first.
      index: The index of this worker.
    """

    hosts: tuple[str, ...]
    index: int

    @property
    def is_chief(self) -> bool:
        """True for the worker that writes the files of the run."""
        return self.index == 0

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return len(self.hosts)

    def name(self, index: int) -> str:
        """Returns a worker's name for messages."""
        role = "the chief, at" if index == 0 else "at"
        return f"worker {index} ({role} {self.hosts[index]})"


def find(
    flags: DeviceConfig, environment: Mapping[str, str] = os.environ
) -> Cluster | None:
    """Finds the workers in the flags or, without them, in TF_CONFIG.

    Returns:
      The cluster; None for a run of one process, even if it is the only worker
      of a cluster.

    Raises:
      UserError: If TF_CONFIG is malformed, contradicts the flags, or names
        several workers for a strategy of one; if an address is malformed; or
        if the strategy needs workers and none are given.
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
    """Refuses addresses for which TensorFlow would wait forever."""
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
