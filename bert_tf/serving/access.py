"""Refusals of REST requests that come from a foreign host name or web page."""

import ipaddress
import socket
import urllib.parse
from collections.abc import Collection

from starlette import datastructures
from starlette import responses
from starlette import types

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
# A header is echoed in errors up to this length.
_MAX_ECHO = 200


def allowed_hosts(host: str, more: str | None) -> frozenset[str] | None:
    """Returns the host names that requests may use; None means any.

    Args:
      host: The address to listen on.
      more: Further names, comma-separated: --allowed_hosts.
    """
    names = {x.strip().lower().strip("[]") for x in (more or "").split(",")}
    names.discard("")
    is_loopback = _is_loopback(host)
    if not names and not is_loopback:
        return None
    if is_loopback:
        names |= {host.lower(), *_LOOPBACK_NAMES}
    return frozenset(names)


def _is_loopback(host: str) -> bool:
    try:
        address = socket.getaddrinfo(host, None)[0][4][0]
    except OSError:
        return False  # Listening there fails with a message of its own.
    return ipaddress.ip_address(address).is_loopback


class HostsMiddleware:
    """Refuses requests that name a foreign host, or that a foreign page sends.

    A browser lets any web page send requests to this machine: by a name that
    resolves to it, or without reading the answer. The first are refused by
    `Host`, the second, where they compute, by `Origin` and `Sec-Fetch-Site`.

    Args:
      hosts: The names in `Host` that are answered; None for any.
    """

    def __init__(
        self, app: types.ASGIApp, hosts: Collection[str] | None
    ) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(
        self, scope: types.Scope, receive: types.Receive, send: types.Send
    ) -> None:
        app = self._app
        headers = datastructures.Headers(scope=scope)
        hosts = headers.getlist("host")
        if self._hosts is not None and not (
            hosts and all(_name(x) in self._hosts for x in hosts)
        ):
            app = _refusal(
                f"The host {_shown(hosts)} is not one of this server's names; "
                "add it to --allowed_hosts."
            )
        elif scope["method"] not in ("GET", "HEAD") and _is_foreign(headers):
            app = _refusal(
                f"A web page of {_shown(headers.getlist('origin'))} may not "
                "use this server; pages of the server itself may."
            )
        await app(scope, receive, send)


def _name(host: str) -> str | None:
    """Returns the name or address in a Host header, without its port."""
    try:
        return urllib.parse.urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_foreign(headers: datastructures.Headers) -> bool:
    """Returns True for a request that a page of another origin has sent."""
    if headers.get("sec-fetch-site", "").lower() == "cross-site":
        return True
    hosts = [host.lower() for host in headers.getlist("host")]
    # A proxy may end TLS, so schemes are not compared.
    return any(
        [origin.lower().partition("://")[2]] != hosts
        for origin in headers.getlist("origin")
    )


def _shown(values: list[str]) -> str:
    return repr(", ".join(values)[:_MAX_ECHO])


def _refusal(message: str) -> responses.Response:
    return responses.JSONResponse({"error": message}, 403)
