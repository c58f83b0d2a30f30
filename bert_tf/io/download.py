"""Downloads one file over HTTP: resumable, verified, and whole or not at all.

`<path>.partial` holds the bytes so far, and `<path>.partial.json` the ETag and
the length that the server stated for them. A later call asks the server for the
rest, on the condition that the file is still the same.

Proxies are those of the environment (HTTPS_PROXY, NO_PROXY, ...).
"""

import base64
import contextlib
import dataclasses
import hashlib
import http.client
import ipaddress
import json
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import tqdm
from absl import logging

from bert_tf import errors
from bert_tf.errors import UserError
from bert_tf.io import progress

_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 60
# Attempts in a row that bring no further byte.
_TRIES = 3
_PAUSE_SECONDS = 0.25
_HASHES = {32: "md5", 64: "sha256"}
# Servers whose ETags look like hashes of the contents and are none: Starlette
# hashes a file's time and size, and Amazon's store encrypted contents.
_OTHER_ETAGS = {"server": "uvicorn", "x-amz-server-side-encryption": "aws:kms"}
_NOT_REACHED = (urllib.error.URLError, OSError, http.client.HTTPException)


@dataclasses.dataclass(frozen=True)
class Download:
    """A complete download.

    Attributes:
      url: The address.
      etag: The server's name for this version of the file, "" if it has none.
      bytes: The size.
      sha256: The hash of the contents, in hexadecimal.
    """

    url: str
    etag: str
    bytes: int
    sha256: str


def announce(message: str) -> None:
    """Logs that something is fetched, also where only warnings are shown."""
    if logging.get_verbosity() >= logging.INFO:
        logging.info("%s", message)
    else:
        tqdm.tqdm.write(message, file=sys.stderr)


class _Interrupted(Exception):
    """A transfer ended early; what has arrived is kept."""


def require_safe_url(url: str) -> None:
    """Raises `UserError` for plain HTTP, except from this machine itself."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and _is_loopback(parts.hostname or ""):
        return
    raise UserError(
        "Expected an https:// address (http:// is for servers on this machine "
        f"only). Received: {url!r}."
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def fetch(
    url: str,
    path: str,
    sha256: str | None = None,
    on_start: Callable[[int | None], object] | None = None,
) -> Download:
    """Downloads a file to `path`, resuming an earlier attempt.

    Args:
      url: Address; plain HTTP is for loopback only.
      path: Local file to write, in an existing folder.
      sha256: Expected hash, if it is known.
      on_start: Is called once with the file's size in bytes, or None if the
        server does not state it, before the file is read.

    Raises:
      UserError: If the server has no such file, cannot be reached, sends less
        or something else than it states, or the hash differs.
    """
    require_safe_url(url)
    transfer = _Transfer(url, f"{path}.partial", on_start)
    failures = 0
    while not transfer.is_complete:
        before = transfer.num_bytes
        try:
            transfer.run()
        except _Interrupted as error:
            failures = failures + 1 if transfer.num_bytes <= before else 0
            total = transfer.notes.get("bytes")
            so_far = f"{transfer.num_bytes} of {total or 'unknown'} bytes"
            if failures == _TRIES:
                if not transfer.num_bytes:
                    raise UserError(
                        f"{url} cannot be fetched ({error}); check the "
                        "connection and the address."
                    ) from error
                raise UserError(
                    f"The download of {url} broke off after {so_far} "
                    f"({error}); run the same command again to resume it."
                ) from error
            logging.warning("%s: %s (%s); resuming.", url, so_far, error)
            time.sleep(_PAUSE_SECONDS * (1 << failures))
    download = _verify(transfer, sha256)
    os.replace(transfer.partial, path)
    os.remove(transfer.notes_file)
    return download


class _Transfer:
    """The part of a file that has arrived, and the way to get the rest."""

    def __init__(
        self,
        url: str,
        partial: str,
        on_start: Callable[[int | None], object] | None,
    ) -> None:
        self.url = url
        self.partial = partial
        self.notes_file = f"{partial}.json"
        self.notes: dict[str, Any] = self._read_notes()
        self.is_complete = 0 < self.num_bytes == self.notes.get("bytes")
        self._on_start = on_start

    @property
    def num_bytes(self) -> int:
        """The number of bytes that have arrived."""
        try:
            return os.path.getsize(self.partial)
        except FileNotFoundError:
            return 0

    def _read_notes(self) -> dict[str, Any]:
        try:
            with open(self.notes_file, encoding="utf-8") as file:
                notes = json.load(file)
        except (FileNotFoundError, ValueError):
            notes = {}
        if notes.get("url") != self.url:
            self.discard()
            return {}
        return notes

    def discard(self) -> None:
        """Removes what has arrived."""
        for path in (self.partial, self.notes_file):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        self.notes = {}
        self.is_complete = False

    def run(self) -> None:
        """Gets the rest of the file.

        Raises:
          _Interrupted: If less arrives than the server states.
          UserError: If the server refuses.
        """
        headers = {"Accept-Encoding": "identity", "User-Agent": "bert_tf"}
        if self.num_bytes:
            headers["Range"] = f"bytes={self.num_bytes}-"
            etag = self.notes["etag"]
            # A weak ETag does not promise the same bytes.
            if etag.startswith("W/") or not etag:
                etag = self.notes["headers"].get("last-modified")
            if etag:
                headers["If-Range"] = etag
        request = urllib.request.Request(self.url, headers=headers)
        opener = urllib.request.build_opener(_SafeRedirects)
        try:
            with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
                self._receive(response)
        except urllib.error.HTTPError as error:
            error.close()
            self._refuse(error)
        except _NOT_REACHED as error:
            raise _Interrupted(
                f"{getattr(error, 'reason', None) or error}"
            ) from error

    def _refuse(self, error: urllib.error.HTTPError) -> None:
        if error.code == 416 or error.code >= 500 or error.code == 429:
            if error.code == 416:  # The file has become shorter.
                self.discard()
            raise _Interrupted(f"status {error.code}") from error
        raise UserError(f"{self.url}: {_explain(error.code)}.") from error

    def _receive(self, response: http.client.HTTPResponse) -> None:
        start, total = _span(response, self.num_bytes)
        etag = response.headers.get("ETag", "")
        if response.status == 206 and (start, total, etag) != (
            self.num_bytes,
            self.notes["bytes"],
            self.notes["etag"],
        ):
            self.discard()
            raise _Interrupted("the file has changed meanwhile")
        self.notes = {
            "url": self.url,
            "etag": etag,
            "bytes": total,
            "headers": {
                name.lower(): ", ".join(response.headers.get_all(name))
                for name in response.headers
            },
        }
        with (
            errors.full_disks(),
            errors.naming(self.notes_file),
            open(self.notes_file, "w", encoding="utf-8") as file,
        ):
            json.dump(self.notes, file)
        if self._on_start:
            self._on_start(total)
            self._on_start = None
        bar = progress.bar(
            total, os.path.basename(self.url), "B", initial=start
        )
        with open(self.partial, "ab" if start else "wb") as file, bar:
            # `read1` returns what has arrived, so that a break loses nothing.
            while chunk := response.read1(_CHUNK_BYTES):
                # Unlike a lost connection, a full disk is not tried again.
                with errors.full_disks(), errors.naming(self.partial):
                    file.write(chunk)
                    file.flush()
                bar.update(len(chunk))
        if total is not None and self.num_bytes != total:
            if self.num_bytes > total:
                self.discard()
            raise _Interrupted("the server closed the connection")
        self.is_complete = True


def _span(
    response: http.client.HTTPResponse, num_bytes: int
) -> tuple[int, int | None]:
    """Returns the first byte that a server sends, and the file's length."""
    if response.status != 206:
        length = response.headers.get("Content-Length")
        return 0, int(length) if length is not None else None
    match = re.fullmatch(
        r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", "")
    )
    return (int(match[1]), int(match[2])) if match else (-1, None)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but none to plain HTTP on another machine."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        require_safe_url(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _explain(code: int) -> str:
    if code in (401, 403):
        return f"the server refuses access (status {code})"
    if code in (404, 410):
        return f"the server has no such file (status {code}); check the address"
    return f"the server answered with status {code}"


def _verify(transfer: _Transfer, sha256: str | None) -> Download:
    """Compares a complete file with the hashes that are known for it."""
    hashes = _hash(transfer.partial)
    headers = transfer.notes["headers"]
    expected = dict(_stated_hashes(headers))
    if sha256:
        expected["sha256"] = sha256.lower()
    for algorithm, value in expected.items():
        if hashes[algorithm] != value:
            transfer.discard()
            raise UserError(
                f"{transfer.url}: the file is damaged or another one: expected "
                f"the {algorithm.upper()} {value}. Received: "
                f"{hashes[algorithm]}; nothing was kept, so fetch it again, or "
                "from elsewhere."
            )
    return Download(
        transfer.url,
        transfer.notes["etag"],
        transfer.num_bytes,
        hashes["sha256"],
    )


def _stated_hashes(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the hashes of the contents that a server's headers state."""
    etag = headers.get("etag", "").strip('"').lower()
    is_other = any(
        value in headers.get(name, "") for name, value in _OTHER_ETAGS.items()
    )
    if re.fullmatch(r"[0-9a-f]+", etag) and len(etag) in _HASHES:
        if not is_other:
            yield _HASHES[len(etag)], etag
    # Google's store: "crc32c=...,md5=...", in base 64.
    match = re.search(r"md5=([\w+/]{22}==)", headers.get("x-goog-hash", ""))
    if match:
        yield "md5", base64.b64decode(match[1]).hex()


def _hash(path: str) -> dict[str, str]:
    digests = {"md5": hashlib.md5(), "sha256": hashlib.sha256()}
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            for digest in digests.values():
                digest.update(chunk)
    return {name: digest.hexdigest() for name, digest in digests.items()}
