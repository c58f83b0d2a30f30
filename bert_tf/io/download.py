"""Downloads one file over HTTP: resumable, verified, and whole or not at all.

`<path>.partial` holds the bytes so far, and `<path>.partial.json` the headers
that the server sent with these bytes. A later call requests the rest, on the
condition that the server's file has not changed.

A server may be hostile, so sizes, times, attempts and redirections have limits.
Proxies come from the environment (HTTPS_PROXY, NO_PROXY, ...).
"""

import base64
import contextlib
import hashlib
import http.client
import io
import ipaddress
import json
import os
import re
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import tqdm
from absl import logging

from bert_tf import errors
from bert_tf.errors import UserError
from bert_tf.io import paths
from bert_tf.io import progress

_CHUNK_BYTES = 1 << 20
# Larger files are refused. The second limit is for files without a stated size.
MAX_BYTES = 1 << 35
_MAX_UNSTATED_BYTES = 1 << 32
# Time limit for the headers, and then for every `_LEAST_BYTES` bytes.
TIMEOUT_SECONDS = 60
_LEAST_BYTES = 1 << 16
# `fetch` gives up after this many failures without 1 MB of data in between.
_TRIES = 3
_PAUSE_SECONDS = 0.25
_HASHES = {32: "md5", 64: "sha256"}
# Check no file against ETags of these servers: Starlette hashes time and size,
# and Amazon S3 hashes encrypted contents.
_OTHER_ETAGS = {"server": "uvicorn", "x-amz-server-side-encryption": "aws:kms"}
_NOT_REACHED = (urllib.error.URLError, OSError, http.client.HTTPException)
# These IPv6 addresses end with an IPv4 address, which `_is_public` checks.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def announce(message: str) -> None:
    """Logs a download, or prints it to stderr if only warnings are logged."""
    if logging.get_verbosity() >= logging.INFO:
        logging.info("%s", message)
    else:
        tqdm.tqdm.write(message, file=sys.stderr)


class _Interrupted(Exception):
    """A transfer failed, but another attempt may succeed."""


def fetch(
    url: str,
    path: str,
    sha256: str | None = None,
    on_start: Callable[[int | None], object] | None = None,
    advice: str = "the address",
) -> dict[str, Any]:
    """Downloads a file to `path`, resuming an earlier attempt.

    Args:
      url: Address; plain HTTP is allowed only for servers on this machine.
      path: Local file to write, in an existing folder.
      sha256: Expected hash, if it is known.
      on_start: Called once before the download, with the file's size in bytes,
        or None if the server states no size.
      advice: The end of the error message "check the connection and ...".

    Returns:
      A dictionary: "etag" ("" if the server sends none), "bytes" and "sha256".

    Raises:
      UserError: If the server has no such file or cannot be reached, or if the
        size, the range or the hash of the file is wrong.
    """
    paths.require_safe_url(url)
    transfer = _Transfer(url, f"{path}.partial", on_start)
    failures, most = 0, transfer.num_bytes
    while not transfer.is_complete:
        try:
            transfer.run()
        except _Interrupted as error:
            now, total = transfer.num_bytes, transfer.total
            failures = failures + 1 if now < most + _CHUNK_BYTES else 0
            most = max(most, now)
            so_far = f"{now} of {total or 'unknown'} bytes"
            if failures == _TRIES:
                if not now:
                    # `from None` hides the tracebacks of all attempts.
                    raise UserError(
                        f"{url} cannot be fetched ({error}); check the "
                        f"connection and {advice}."
                    ) from None
                raise UserError(
                    f"The download of {url} broke off after {so_far} "
                    f"({error}); run the same command again to resume it."
                ) from None
            if now:
                logging.warning("%s: %s (%s); resuming.", url, so_far, error)
            time.sleep(_PAUSE_SECONDS * (1 << failures))
    found = transfer.verify(sha256)
    os.replace(transfer.partial, path)
    os.remove(transfer.notes_file)
    return found


class _Transfer:
    """One download: the partial file, its headers, and the next request."""

    def __init__(
        self,
        url: str,
        partial: str,
        on_start: Callable[[int | None], object] | None,
    ) -> None:
        self.url = url
        self.partial = partial
        self.notes_file = f"{partial}.json"
        self.total: int | None = None
        self._headers: dict[str, str] = {}
        self._on_start = on_start
        with contextlib.suppress(FileNotFoundError, ValueError):
            with open(self.notes_file, encoding="utf-8") as file:
                notes = json.load(file)
            if notes["url"] == url:
                self.total, self._headers = notes["bytes"], notes["headers"]
        if not self._headers:
            self._discard()
        self.is_complete = 0 < self.num_bytes == self.total

    @property
    def num_bytes(self) -> int:
        """The number of bytes that have arrived."""
        try:
            return os.path.getsize(self.partial)
        except FileNotFoundError:
            return 0

    def _discard(self) -> None:
        for path in (self.partial, self.notes_file):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        self.total, self._headers = None, {}

    def run(self) -> None:
        """Requests the rest of the file.

        Raises:
          _Interrupted: If the server cannot be reached, is busy or fails, sends
            too few bytes, or has another file than before.
          UserError: If the server refuses the request, or sends a wrong answer;
            a wrong answer also discards the partial file.
        """
        headers = {"Accept-Encoding": "identity", "User-Agent": "bert_tf"}
        if self.num_bytes:
            headers["Range"] = f"bytes={self.num_bytes}-"
            etag = self._headers.get("etag", "")
            # Files with equal weak ETags may differ, so send the date instead.
            if etag.startswith("W/") or not etag:
                etag = self._headers.get("last-modified")
            if etag:
                headers["If-Range"] = etag
        request = urllib.request.Request(self.url, headers=headers)
        opener = urllib.request.build_opener(_Redirects, _Handler)
        try:
            with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
                self._receive(response)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # The server's file has become shorter.
                self._discard()
            if error.code in (416, 429) or error.code >= 500:
                raise _Interrupted(f"status {error.code}") from error
            raise UserError(f"{self.url}: {_explain(error.code)}.") from error
        except _NOT_REACHED as error:
            reason = getattr(error, "reason", None) or error
            raise _Interrupted(f"{reason!s:.200}") from error
        except UserError:
            raise
        except ValueError as error:  # Also raised for an invalid redirection.
            self._discard()
            raise UserError(
                f"{self.url}: the server's answer is wrong ({error})."
            ) from error

    def _receive(self, response: http.client.HTTPResponse) -> None:
        start = self.num_bytes
        headers = {
            name.lower(): ", ".join(response.headers.get_all(name))
            for name in response.headers
        }
        if response.status == 206 and start:
            expected = rf"bytes {start}-[0-9]+/{self.total}"
            same = headers.get("etag", "") == self._headers.get("etag", "")
            span = headers.get("content-range", "")
            if not same or not re.fullmatch(expected, span):
                self._discard()
                raise _Interrupted("the file has changed meanwhile")
        elif response.status == 200:
            length = headers.get("content-length")
            if length is not None and not re.fullmatch("[0-9]{1,18}", length):
                raise ValueError(f"it states the length {length:.40}")
            # Discard old bytes first, or a crash could mix old and new bytes.
            self._discard()
            start, self.total = 0, None if length is None else int(length)
        else:
            status = response.status
            raise ValueError(f"not what was asked for, with status {status}")
        self._headers = headers
        limit = _MAX_UNSTATED_BYTES if self.total is None else MAX_BYTES
        if (self.total or 0) > limit:
            self._discard()
            raise too_large(self.url, limit)
        with (
            errors.full_disks(),
            errors.naming(self.notes_file),
            open(self.notes_file, "w", encoding="utf-8") as file,
        ):
            notes = {"url": self.url, "bytes": self.total, "headers": headers}
            json.dump(notes, file)
        if self._on_start:
            self._on_start(self.total)
            self._on_start = None
        bar = progress.bar(
            self.total, os.path.basename(self.url), "B", initial=start
        )
        pace = response.fp.raw.pace
        with open(self.partial, "ab") as file, bar:
            # Unlike `read`, `read1` loses no bytes if the transfer breaks off.
            while chunk := response.read1(_CHUNK_BYTES):
                # A full disk raises `UserError`, so `fetch` does not retry.
                with errors.full_disks(), errors.naming(self.partial):
                    file.write(chunk)
                    file.flush()
                bar.update(len(chunk))
                pace.add(len(chunk))
                if file.tell() > limit:
                    self._discard()
                    raise too_large(self.url, limit)
        if self.total is not None and self.num_bytes != self.total:
            if self.num_bytes > self.total:
                self._discard()
            raise _Interrupted("the server closed the connection")
        self.is_complete = True

    def verify(self, sha256: str | None) -> dict[str, Any]:
        """Checks all known hashes; a wrong file is discarded and refused."""
        actual = _hash(self.partial, "sha256")
        expected = [*_stated_hashes(self._headers)]
        if sha256:
            expected.append(("sha256", sha256.lower()))
        for name, value in expected:
            received = _hash(self.partial, name) if name == "md5" else actual
            if received != value:
                self._discard()
                raise UserError(
                    f"{self.url}: the file is damaged or another one: expected "
                    f"the {name.upper()} {value}. Received: {received}; "
                    "nothing was kept, so fetch it again, or from elsewhere."
                )
        etag = self._headers.get("etag", "")
        return {"etag": etag, "bytes": self.num_bytes, "sha256": actual}


def too_large(source: str, limit: int) -> UserError:
    """Returns the error for a file that is too large for a model."""
    return UserError(
        f"{source} is larger than {limit} bytes, so it is no model."
    )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but none from the Internet to a private network."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        fp.close()  # Otherwise urllib reads the whole body, of any length.
        paths.require_safe_url(newurl)
        check_redirection(req.full_url, newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_redirection(source: str, target: str) -> None:
    """Raises `UserError` if a redirection leads into a private network."""
    hosts = [urlsplit(url).hostname for url in (source, target)]
    if hosts[0] == hosts[1] or not _is_public(hosts[0]):
        return
    if not _is_public(hosts[1]):
        raise UserError(
            f"{source} redirects to {target:.200}, an address of a private "
            "network, which was not followed; fetch the file from elsewhere."
        )


def _is_public(host: str) -> bool:
    """Returns False if a name has an address on this machine or a private net.

    A name may point to a private server after this check, but that server has
    no TLS certificate for the name.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:  # Unknown here, but a proxy may know the name.
        return True
    for address in {ipaddress.ip_address(entry[4][0]) for entry in found}:
        if address in _NAT64:
            address = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if address.version == 6:
            address = address.ipv4_mapped or address.sixtofour or address
        if not address.is_global:
            return False
    return True


class _Handler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Opens connections with a time limit for the answer, see `Pace`."""

    def do_open(self, http_class, req, **http_conn_args):
        def connect(host, **kwargs):
            connection = http_class(host, **kwargs)
            connection.response_class = _Response
            return connection

        return super().do_open(connect, req, **http_conn_args)


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_Timed(sock))


class Pace:
    """The deadline for the headers, and then for each `_LEAST_BYTES`.

    A socket's own time limit is not enough: it restarts with each byte, so a
    server could send one byte a minute.
    """

    def __init__(self) -> None:
        self._end = time.monotonic() + TIMEOUT_SECONDS
        self._recent = 0

    def add(self, num_bytes: int) -> None:
        """Counts bytes; each `_LEAST_BYTES` bytes renew the deadline."""
        self._recent += num_bytes
        if self._recent >= _LEAST_BYTES:
            self.__init__()

    def seconds_left(self) -> float:
        """Returns the time left; raises `TimeoutError` if there is none."""
        seconds = self._end - time.monotonic()
        if seconds <= 0:
            raise TimeoutError(
                f"less than {_LEAST_BYTES} bytes in {TIMEOUT_SECONDS} seconds"
            )
        return seconds


class _Timed(io.RawIOBase):
    """A binary file that reads a socket until the deadline of a `Pace`."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._bytes = sock.makefile("rb", 0)
        self.pace = Pace()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:
        self._socket.settimeout(self.pace.seconds_left())
        return self._bytes.readinto(buffer)

    def close(self) -> None:
        self._bytes.close()
        super().close()


def _explain(code: int) -> str:
    if code in (401, 403):
        return f"the server refuses access (status {code})"
    if code in (404, 410):
        return f"the server has no such file (status {code}); check the address"
    return f"the server answered with status {code}"


def _stated_hashes(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the hashes of the contents that a server's headers state."""
    etag = headers.get("etag", "").strip('"').lower()
    is_other = any(
        value in headers.get(name, "") for name, value in _OTHER_ETAGS.items()
    )
    if re.fullmatch(r"[0-9a-f]+", etag) and len(etag) in _HASHES:
        if not is_other:
            yield _HASHES[len(etag)], etag
    # Google Cloud Storage sends the header "crc32c=...,md5=..." in base 64.
    match = re.search(r"md5=([\w+/]{22}==)", headers.get("x-goog-hash", ""))
    if match:
        yield "md5", base64.b64decode(match[1]).hex()


def _hash(path: str, algorithm: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
