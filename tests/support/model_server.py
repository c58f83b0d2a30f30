"""Stand-ins on loopback for a store of archives and for two hubs."""

import base64
import contextlib
import dataclasses
import fcntl
import hashlib
import http.server
import json
import os
import re
import tempfile
import threading
import urllib.parse
from collections.abc import Callable
from collections.abc import Iterable

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_KAGGLE_PORT = 7777


@dataclasses.dataclass
class Page:
    """One response.

    Attributes:
      contents: The bytes.
      status: The status in place of 200.
      stops: The bytes after which the connection breaks, for each request.
      headers: Headers beside Content-Length, ETag and Accept-Ranges.
      has_ranges: Whether the server obeys a Range header.
      has_conditions: Whether the server obeys an If-Range header.
      raw: If set, yields all bytes of the response, maybe without end; the
        other attributes do not count.
      react: If set, returns the JSON to answer from the request's body.
    """

    contents: bytes = b""
    status: int = 200
    stops: list[int] = dataclasses.field(default_factory=list)
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    has_ranges: bool = True
    has_conditions: bool = True
    raw: Callable[[], Iterable[bytes]] | None = None
    react: Callable[[bytes], dict] | None = None


class ModelServer:
    """An HTTP server of pages by path.

    Attributes:
      pages: Path to `Page`.
      requests: Method, path and Range of each request so far.
      conditions: The If-Range header of each request.
    """

    def __init__(self, port=0):
        self.pages = {}
        self.requests = []
        self.conditions = []

        class Handler(_Handler):
            owner = self

        self._server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", port), Handler
        )
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,)
        )

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, path, contents, **kwargs):
        """Adds a page with a file; returns it."""
        self.pages[path] = Page(contents, **kwargs)
        return self.pages[path]

    def add_json(self, path, values, status=200):
        """Adds a page with JSON."""
        return self.add(
            path,
            json.dumps(values).encode(),
            status=status,
            headers={"Content-Type": "application/json"},
        )

    def gets(self, path):
        """Returns the Range headers of the requests for a path's contents."""
        return [x[2] for x in self.requests if x[:2] == ("GET", path)]

    def add_repository(self, name, files, commit=COMMIT, revision="main"):
        """Adds a repository of Hugging Face's hub."""
        entries = [(n, len(x)) for n, x in sorted(files.items())]
        info = {
            "id": name,
            "sha": commit,
            "siblings": [{"rfilename": n, "size": s} for n, s in entries],
        }
        tree = [
            {"type": "file", "path": n, "size": s, "oid": "0" * 40}
            for n, s in entries
        ]
        for known in {revision, commit}:
            self.add_json(f"/api/models/{name}/revision/{known}", info)
            self.add_json(f"/api/models/{name}/tree/{known}", tree)
        if revision == "main":
            self.add_json(f"/api/models/{name}", info)
        for file, contents in files.items():
            self.add(
                f"/{name}/resolve/{commit}/{file}",
                contents,
                headers={"X-Repo-Commit": commit, "ETag": _etag(contents)},
            )

    def take_uploads(self, name):
        """Adds a Hugging Face repository that can be created and written.

        Returns:
          The contents of its files by name, empty before the first commit.
        """
        stored, large = {}, {}
        missing = {"X-Error-Code": "RepoNotFound"}
        self.add(f"/api/models/{name}", b"{}", status=404, headers=missing)

        def preupload(body):
            return {
                "files": [
                    {
                        "path": x["path"],
                        "uploadMode": "lfs" if x["size"] > 9999 else "regular",
                        "shouldIgnore": False,
                        "oid": None,
                    }
                    for x in json.loads(body)["files"]
                ]
            }

        def batch(body):
            objects = json.loads(body)["objects"]
            for item in objects:
                href = f"/put/{item['oid']}"
                item["actions"] = {"upload": {"href": self.url + href}}
                self.pages[href] = Page(
                    react=lambda body, oid=item["oid"]: (
                        large.update({oid: body}) or {}
                    )
                )
            return {"objects": objects}

        def commit(body):
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    contents = base64.b64decode(value["content"])
                    stored[value["path"]] = contents
                elif line["key"] == "lfsFile":
                    stored[value["path"]] = large[value["oid"]]
                elif line["key"] == "deletedFile":
                    del stored[value["path"]]
            self.add_repository(name, stored)
            url = f"{self.url}/{name}/commit/{COMMIT}"
            return {"commitUrl": url, "commitOid": COMMIT}

        for path, react in {
            "/api/repos/create": lambda body: {"url": f"{self.url}/{name}"},
            "/api/validate-yaml": lambda body: {"errors": []},
            f"/api/models/{name}/preupload/main": preupload,
            f"/{name}.git/info/lfs/objects/batch": batch,
            f"/api/models/{name}/commit/main": commit,
        }.items():
            self.pages[path] = Page(react=react)
        return stored

    def add_kaggle(self, files, version=3):
        """Adds the only model of Kaggle's hub; any name finds it."""
        service = "/api/v1/models.ModelApiService"
        self.add_json(f"{service}/GetModelInstance", {"versionNumber": version})
        self.add_json(
            f"{service}/ListModelInstanceVersionFiles",
            {
                "files": [
                    {"name": name, "size": len(contents)}
                    for name, contents in files.items()
                ],
                "nextPageToken": "",
            },
        )
        for name, contents in files.items():
            self.add(f"/store/{name}", contents)
            self.pages[f"{service}/DownloadModelInstanceVersion/{name}"] = Page(
                status=302, headers={"Location": f"{self.url}/store/{name}"}
            )


def _etag(contents):
    return f'"{hashlib.sha256(contents).hexdigest()}"'


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner = None

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def do_PUT(self):
        self.do_POST()

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        while self.headers.get("Transfer-Encoding") == "chunked":
            size = int(self.rfile.readline(), 16)
            body += self.rfile.read(size + 2)[:size]
            if not size:
                break
        page = self.owner.pages.get(urllib.parse.urlsplit(self.path).path)
        if page and page.react:
            page.contents = json.dumps(page.react(body)).encode()
            page.headers = {"Content-Type": "application/json"}
            self._answer()
            return
        # Kaggle's requests name the file in the body, so the path lacks it.
        file = json.loads(body or b"{}").get("path")
        self._answer(f"/{file}" if file else "")

    def _answer(self, file=""):
        path = urllib.parse.urlsplit(self.path).path + file
        part = self.headers.get("Range")
        condition = self.headers.get("If-Range")
        self.owner.requests.append((self.command, path, part))
        self.owner.conditions.append(condition)
        page = self.owner.pages.get(path, Page(b"{}", status=404))
        if page.raw:
            self.close_connection = True
            with contextlib.suppress(ConnectionError):
                for piece in page.raw():
                    self.wfile.write(piece)
            return
        contents, status, extra = page.contents, page.status, {}
        etag = page.headers.get("ETag", _etag(contents))
        start = 0
        match = re.fullmatch(r"bytes=(\d+)-", part or "")
        if match and page.has_ranges:
            same = (None, etag, page.headers.get("Last-Modified"))
            if condition in same or not page.has_conditions:
                start, last = int(match[1]), len(contents) - 1
                status = 206 if start <= last else 416
                extra["Content-Range"] = f"bytes {start}-{last}/{len(contents)}"
        self.send_response(status)
        headers = {"Content-Length": str(len(contents) - start), "ETag": etag}
        if page.has_ranges:
            headers["Accept-Ranges"] = "bytes"
        for name, value in (headers | page.headers | extra).items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        body = contents[start:]
        if page.stops:
            body = body[: page.stops.pop(0)]
            self.close_connection = True
        self.wfile.write(body)


@contextlib.contextmanager
def kaggle():
    """Yields a server at the only port that kagglehub's test mode uses."""
    path = os.path.join(tempfile.gettempdir(), "bert_tf_kaggle_port.lock")
    with open(path, "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Tests run in several processes.
        with ModelServer(_KAGGLE_PORT) as server:
            yield server
