"""Starts run/serve.py as a process, with several models."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request

from tests.support import ports
from tests.support.repository import ROOT

_TIMEOUT_SECONDS = 300


@contextlib.contextmanager
def serve(folder, models):
    """Serves models until the block ends.

    Args:
      folder: The folder for the server's configuration and log.
      models: Folders of versions, by model name.

    Yields:
      The addresses HOST:PORT of gRPC and of REST.

    Raises:
      RuntimeError: If the server exits, or does not start in time.
    """
    config = os.path.join(folder, "models.config")
    pathlib.Path(config).write_text(_config(models), "utf-8")
    grpc_port, rest_port = ports.free(2)
    log = os.path.join(folder, "server.log")
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "run/serve.py"),
                f"--model_config_file={config}",
                f"--port={grpc_port}",
                f"--rest_api_port={rest_port}",
            ],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        )
    try:
        _wait(process, f"http://127.0.0.1:{rest_port}/readyz", log)
        yield f"127.0.0.1:{grpc_port}", f"127.0.0.1:{rest_port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _config(models):
    blocks = [
        "  config {\n"
        f'    name: "{name}"\n'
        f'    base_path: "{path}"\n'
        '    model_platform: "tensorflow"\n'
        "  }\n"
        for name, path in models.items()
    ]
    return "model_config_list {\n" + "".join(blocks) + "}\n"


def _wait(process, url, log):
    """Waits until the server is ready."""
    end = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        time.sleep(0.2)
    with open(log, encoding="utf-8", errors="replace") as file:
        text = file.read()[-3000:]
    raise RuntimeError(f"The server did not start. Its log:\n{text}")
