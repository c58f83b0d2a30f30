"""Ports at which nothing listens, and which no other program gets."""

import collections
import socket

# Bound but not listening: the system gives these ports to no other program, yet
# a server with SO_REUSEADDR, as all servers set it, can listen there. The
# oldest ones are closed, because `select` needs small file numbers.
_held = collections.deque(maxlen=100)


def free(count):
    """Returns different ports, each for one server of this test."""
    for _ in range(count):
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        _held.append(held)
    return [held.getsockname()[1] for held in [*_held][-count:]]
