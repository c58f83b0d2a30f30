"""Who the workers of a run are: --worker_hosts, or TF_CONFIG."""

import dataclasses
import json
import os
import socket
from collections.abc import Mapping
from collections.abc import MutableMapping

from bert_tf.errors import UserError
from bert_tf.run_config import DeviceConfig

_VARIABLE = "TF_CONFIG"
_ROLES = ("chief", "worker")


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


def find(
    flags: DeviceConfig, environment: Mapping[str, str] = os.environ
) -> Cluster | None:
    """Finds the workers in the flags or, without them, in TF_CONFIG.

    Args:
      flags: The flags.
      environment: Where TF_CONFIG is.

    Returns:
      They; None for a run of one process.

    Raises:
      UserError: If TF_CONFIG cannot be used, says something else than the
        flags, or names several workers for a strategy of one.
    """
    told = _read_variable(environment.get(_VARIABLE, ""))
    asked = None
    if flags.worker_hosts is not None:
        hosts = tuple(flags.worker_hosts.split(","))
        asked = Cluster(hosts, flags.task_index)
    if asked and told and asked != told:
        raise UserError(
            f"--worker_hosts and --task_index say {asked}, and {_VARIABLE} "
            f"says {told}; use one of the two."
        )
    found = asked or told
    if found is None or found.num_workers == 1:
        return None
    if flags.distribution_strategy not in ("auto", "multi_worker_mirrored"):
        raise UserError(
            f"{_VARIABLE} names {found.num_workers} workers, of which "
            f"--distribution_strategy={flags.distribution_strategy} would let "
            "each train for itself; use multi_worker_mirrored, or unset "
            f"{_VARIABLE}."
        )
    return found


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


def require_free_port(cluster: Cluster) -> None:
    """Makes sure that this worker can listen at its port.

    Raises:
      UserError: If another program does; TensorFlow would not say so.
    """
    host = cluster.hosts[cluster.index]
    port = host.rpartition(":")[2]
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(("", int(port)))
        except (OSError, ValueError, OverflowError) as error:
            raise UserError(
                f"Worker {cluster.index} cannot listen at {host} ({error}); "
                "is another program using the port, or an earlier run still "
                "ending?"
            ) from error
