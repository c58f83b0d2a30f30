"""Executes the code blocks of the documentation: `make docs-test`.

Each page runs from top to bottom in its own folder, which has the scripts, and
tiny models under the names of real models. A page has up to thirty commands, so
`python` is forked from a process that has imported TensorFlow.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent import futures

from tools import docs_blocks
from tools import docs_data

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# Seconds that a block may take.
_TIMEOUT = 240
_LINKED = ("bert_tf", "docs", "export", "run", "tools", "tests", "benchmarks")
# Flags that are added to a page's flags, because compiling a tiny model takes
# longer than training it, and long training teaches it nothing.
_SHORTER = {
    "finetune_": ["--xla=off", "--num_train_epochs=1"],
    "distill": ["--xla=off", "--num_train_epochs=1"],
    "pretrain.": ["--xla=off", "--num_train_steps=9", "--num_warmup_steps=1"],
}
# A page that trains the classifier itself gets no finished one.
_TRAINS = "--output_dir=output/topics "
_READY = "http://localhost:8501/readyz"
# Pages with a server use the same port, so only one of them runs at a time.
_server_lock = threading.Lock()

_PYTHON = """\
#!{python} -IS
import os, socket, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect({path!r})
message = "\\0".join([os.getcwd(), *sys.argv[1:]]).encode()
socket.send_fds(connection, [message], [0, 1, 2])
sys.exit(int(connection.recv(20) or b"1"))
"""


def _fork_server(path: str) -> None:
    """Answers each connection with the exit status of a forked Python."""
    # A fork copies no threads, but these imports start none.
    import tensorflow  # noqa: F401, ICN001

    import bert_tf.commands  # noqa: F401

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(16)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        message, fds, _, _ = socket.recv_fds(connection, 1_000_000, 3)
        child = os.fork()
        if not child:
            connection.close()
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
            folder, *words = message.decode().split("\0")
            _python(folder, words)
            return
        _wait(child, connection)
        os._exit(0)


def _wait(child: int, connection: socket.socket) -> None:
    """Sends a child's exit status; ends the child if the caller is gone."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):
                connection.send(b"%d" % (code if code >= 0 else 128 - code))
            return
        if select.select([connection], [], [], 0.02)[0]:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
            return


def _python(folder: str, words: list[str]) -> None:
    """Runs, in a folder, what `python` with these arguments would run."""
    os.chdir(folder)
    sys.path[0] = folder
    if words[0] == "-c":
        exec(words[1], {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        script = os.path.basename(words[0])
        sys.argv = words + next(
            (x for name, x in _SHORTER.items() if script.startswith(name)), []
        )
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


_SESSION = """
import json, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    status = 0
    try:
        exec(compile(json.loads(line), "<block>", "exec"), names)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.write(f"\\0{status}\\n")
    sys.stderr.flush()
"""


@dataclasses.dataclass
class _Failure:
    block: docs_blocks.Block
    output: str


class _Page:
    """A page in its folder, with the processes that its blocks start."""

    def __init__(self, name: str, folder: str, environment: dict) -> None:
        self._name = name
        self._folder = folder
        self._environment = environment
        self._log = open(os.path.join(folder, "output.log"), "w+b")  # noqa: SIM115
        self._background: list[subprocess.Popen] = []
        self._session: subprocess.Popen | None = None

    def run(self) -> tuple[list[tuple[docs_blocks.Block, float]], list]:
        """Returns executed blocks with their seconds, and failures."""
        timed, failures = [], []
        blocks = [x for x in docs_blocks.read(self._name) if x.is_executed]
        try:
            for block in blocks:
                self._log.seek(0)
                self._log.truncate()
                started = time.monotonic()
                if not self._run_block(block):
                    self._log.seek(0)
                    output = self._log.read().decode(errors="replace")
                    failures.append(_Failure(block, output))
                timed.append((block, time.monotonic() - started))
        finally:
            self._end()
        return timed, failures

    def _run_block(self, block: docs_blocks.Block) -> bool:
        if block.language == "python":
            return self._run_python(docs_data.replace_names(block.text))
        is_server = "python run/serve.py" in block.text
        text = docs_data.replace_names(block.text)
        process = self._start(["bash", "-euo", "pipefail", "-c", text])
        if is_server:
            self._background.append(process)
            return self._wait_for_server(process)
        try:
            return process.wait(_TIMEOUT) == 0
        except subprocess.TimeoutExpired:
            self._kill(process)
            self._log.write(f"More than {_TIMEOUT} s.\n".encode())
            return False

    def _start(self, words: list[str], **kwargs) -> subprocess.Popen:
        return subprocess.Popen(
            words,
            cwd=self._folder,
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            **{"stdin": subprocess.DEVNULL} | kwargs,
        )

    def _wait_for_server(self, process: subprocess.Popen) -> bool:
        deadline = time.monotonic() + _TIMEOUT
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(_READY):
                    return True
            time.sleep(0.1)
        return False

    def _run_python(self, text: str) -> bool:
        """Runs a block in the page's own Python session."""
        if self._session is None:
            self._session = self._start(
                ["python", "-c", _SESSION], stdin=subprocess.PIPE
            )
        line = json.dumps(text).encode() + b"\n"
        self._session.stdin.write(line)
        self._session.stdin.flush()
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline and self._session.poll() is None:
            self._log.seek(0)
            _, mark, status = self._log.read().rpartition(b"\0")
            if mark and status.endswith(b"\n"):
                return status == b"0\n"
            time.sleep(0.05)
        return False

    def _kill(self, process: subprocess.Popen) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _end(self) -> None:
        if self._session is not None:
            self._session.stdin.close()
            self._kill(self._session)
        for process in self._background:
            self._kill(process)
        self._log.close()


@contextlib.contextmanager
def _python_on_path(folder: str) -> Iterator[dict[str, str]]:
    """Yields the environment in which `python` is forked."""
    path = os.path.join(folder, "socket")
    programs = os.path.join(folder, "bin")
    os.mkdir(programs)
    program = pathlib.Path(programs, "python")
    program.write_text(_PYTHON.format(python=sys.executable, path=path))
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(_ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
        "BERT_TF_OFFLINE": "1",
        "BERT_TF_CACHE": os.path.join(folder, "cache"),
        "MPLBACKEND": "agg",
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "tools.docs_run", path],
        env=environment,
        stdout=subprocess.PIPE,
    )
    try:
        if server.stdout.readline() != b"ready\n":
            raise RuntimeError("The forking process has ended.")
        yield environment
    finally:
        server.kill()
        server.wait()


def _run_page(page: str, folder: str, made: str, environment: dict):
    """Runs a page in a copy of the folder with models and data."""
    place = os.path.join(folder, page.replace("/", "_"))
    shutil.copytree(made, place, symlinks=True)
    for name in (*_LINKED, *(x.name for x in _ROOT.glob("*.flags"))):
        os.symlink(_ROOT / name, os.path.join(place, name))
    text = (_ROOT / page).read_text(encoding="utf-8")
    trained, used = text.find(_TRAINS), text.find(docs_data.CLASSIFIER)
    if trained >= 0 and (used < 0 or trained < used):
        shutil.rmtree(os.path.join(place, docs_data.CLASSIFIER))
    with contextlib.ExitStack() as stack:
        if "python run/serve.py" in text:
            stack.enter_context(_server_lock)
        try:
            return _Page(page, place, environment).run()
        finally:
            shutil.rmtree(place, ignore_errors=True)


def run(pages: list[str]) -> bool:
    """Executes pages and prints a report; returns True if no block failed."""
    started = time.monotonic()
    executed, failures = 0, []
    with tempfile.TemporaryDirectory() as folder:
        with _python_on_path(folder) as environment:
            made = os.path.join(folder, "made")
            docs_data.write(made)
            with futures.ThreadPoolExecutor(2) as pool:
                results = pool.map(
                    lambda x: _run_page(x, folder, made, environment), pages
                )
                for page, (timed, failed) in zip(pages, results, strict=True):
                    executed += len(timed)
                    failures += failed
                    seconds = sum(x for _, x in timed)
                    print(f"{page}: {len(timed)} blocks, {seconds:.0f} s")
                    for block, taken in timed:
                        place = f"line {block.line}: {block.title}"
                        print(f"  {taken:5.1f} s  {place}")
    left = [x for x in docs_blocks.not_executed() if x.page in pages]
    print(f"\nNot executed: {len(left)}")
    for block in left:
        print(f"  {block.page}:{block.line}: {block.title} ({block.reason})")
    for failure in failures:
        block = failure.block
        print(f"\nFAILED: {block.page}:{block.line}\n{block.text}")
        print(failure.output[-6000:])
    print(
        f"\n{executed} blocks in {time.monotonic() - started:.0f} s, "
        f"{len(failures)} failed."
    )
    return not failures


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("/"):
        _fork_server(sys.argv[1])
    else:
        sys.exit(not run(sys.argv[1:] or docs_blocks.pages()))
