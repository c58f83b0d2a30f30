"""Silences TensorFlow's noise, and messages about the steps of an export."""

import atexit
import contextlib
import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterator

from absl import logging

# Lines that TensorFlow writes on healthy machines, after time and source.
_MESSAGES = (
    rb"Compiled cluster using XLA!",
    rb"Could not find cuda drivers",
    rb"Ignored (?:output_format|drop_control_dependency)\.",
    rb"Loaded cuDNN version",
    rb"MLIR V1 optimization pass is not enabled",
    rb"NodeDef mentions attribute \S+ which is not in the op definition",
    rb"StreamExecutor device \(\d+\)",
    rb"TF-TRT Warning: Could not find TensorRT",
    rb"This TensorFlow binary is optimized",
    rb"Unable to register cu\w+ factory",
    rb"XLA service 0x\w+ initialized",
    rb"computation placer already registered",
    rb"oneDNN custom operations are on",
)
_WITHOUT_GPU = (rb"failed call to cuInit",)
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
_SOURCE = (
    rb"(?:\d{4}-\d\d-\d\d [\d:.]+: [IWE]|[IWE]\d{4} [\d:.]+ +\d+) \S+:\d+\] "
)
_WHOLE = (
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are "
    rb"written to STDERR",
    rb"To enable the following instructions: [^\n]*, rebuild TensorFlow[^\n]*",
    rb"INFO: Created TensorFlow Lite XNNPACK delegate for CPU\.",
)
# The incomplete last line, if it may become one of these lines.
_BEGINNING = re.compile(
    rb"(?:\d{4}-\d\d-\d\d \d\d:|[IWE]\d{4} \d\d:|WARNING: All log |"
    rb"INFO: Created Tensor|To enable the foll)[^\n]*\Z|"
    # LiteRT writes the rest of its line by itself.
    rb"INFO: \Z"
)
# Seconds to wait for its end.
_PATIENCE = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Hundredths of a second to wait for the filter's last lines.
_MAX_WAITS = 100


@contextlib.contextmanager
def below(level: int) -> Iterator[None]:
    """Silences log messages below a level, such as `logging.ERROR`."""
    before = logging.get_verbosity()
    logging.set_verbosity(level)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def drop_noise() -> None:
    """Drops known lines of TensorFlow's from standard error, for scripts.

    C++ writes to the file descriptor, so a small process copies what arrives
    there. All else passes at once, and the last words of a process that is
    aborted, too. On a terminal Python writes directly, as bars need it.

    Call it before any thread runs. The first process of a container, with
    which all others end, and systems without `fork` keep the noise.
    """
    if os.getpid() == 1 or not hasattr(os, "fork"):
        return
    sys.stderr.flush()
    target = os.dup(2)
    source, sink = os.pipe()
    # The filter never gets signals of the terminal: they are for the script.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.fork()
    if not child:
        try:
            _become_filter(source, target)
        finally:
            os._exit(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.dup2(sink, 2)
    os.close(sink)
    os.close(source)
    if os.isatty(target):
        sys.stderr = open(  # noqa: SIM115
            target,
            "w",
            buffering=1,
            encoding=sys.stderr.encoding,
            errors="backslashreplace",
            closefd=False,
        )
    atexit.register(_end_filter, os.getpid(), child, target)


def _become_filter(source: int, target: int) -> None:
    """Copies until all writers are gone."""
    os.dup2(source, 0)
    os.dup2(target, 1)
    os.closerange(2, 1024)
    messages = _MESSAGES
    if not any(map(os.path.exists, _GPU_FILES)):
        messages += _WITHOUT_GPU
    known = _SOURCE + rb"(?:" + rb"|".join(messages) + rb")[^\n]*"
    _copy(re.compile(rb"(?:" + rb"|".join((known, *_WHOLE)) + rb")\n"))


def _copy(noise: re.Pattern[bytes]) -> None:
    """Copies descriptor 0 to 1, without the noise."""
    held = b""
    while True:
        is_ready = select.select([0], [], [], _PATIENCE if held else None)[0]
        chunk = os.read(0, 1 << 16) if is_ready else b""
        held = noise.sub(b"", held + chunk)
        incomplete = _BEGINNING.search(held) if chunk else None
        end = incomplete.start() if incomplete else len(held)
        passed, held = held[:end], held[end:]
        while passed:
            passed = passed[os.write(1, passed) :]
        if is_ready and not chunk:
            return


def _end_filter(owner: int, child: int, target: int) -> None:
    """Restores standard error; waits until the filter has copied the rest."""
    if os.getpid() != owner:
        return
    sys.stderr.flush()
    os.dup2(target, 2)
    # Other processes may still write to it.
    with contextlib.suppress(ChildProcessError):
        for _ in range(_MAX_WAITS):
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(0.01)
