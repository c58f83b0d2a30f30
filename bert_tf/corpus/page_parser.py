"""A process that parses wikitext, and that ends when a page takes too long.

The parser is written in C, where no exception and no signal handler of Python
reaches it, and a page of unclosed markup takes it hours. So it has a process
of its own, one for each worker process, which the kernel ends at the limit.
"""

import atexit
import contextlib
import functools
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator

from bert_tf import errors
from bert_tf.errors import WorkerEndedError

_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from bert_tf.corpus import page_parser; page_parser.serve()"
)


class TooSlowError(Exception):
    """The page takes longer than the limit."""


class TooDeepError(Exception):
    """The page is nested too deeply for the parser."""


class PageParser:
    """Calls `wikitext.extract` in another process, which starts when needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def extract(
        self, text: str, hidden: frozenset[str], seconds: float
    ) -> list[str]:
        """Returns the paragraphs of a page.

        Args:
          text: As in `wikitext.extract`.
          hidden: As there.
          seconds: Limit on the parser's CPU time, so that a busy machine
            drops no page.

        Raises:
          TooSlowError: If the limit was reached.
          TooDeepError: If the page is nested too deeply.
          WorkerEndedError: If the process was ended by something else.
        """
        process = self._process or self._start()
        try:
            pickle.dump((text, hidden, seconds), process.stdin)
            process.stdin.flush()
            paragraphs = pickle.load(process.stdout)
        except (BrokenPipeError, EOFError, pickle.UnpicklingError) as error:
            raise self._reason() from error
        if paragraphs is None:
            raise TooDeepError
        return paragraphs

    def close(self) -> None:
        """Ends the process; it starts again when it is needed."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        with errors.extras():
            import mwparserfromhell  # noqa: F401
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self._process

    def _reason(self) -> Exception:
        """Returns the error for a process that has ended, and forgets it."""
        process, self._process = self._process, None
        # What is left in the buffer cannot be written.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        status = process.wait()
        if status == -signal.SIGPROF:
            return TooSlowError()
        # The stack of the parser's C code is full.
        if status == -signal.SIGSEGV:
            return TooDeepError()
        return WorkerEndedError(
            f"The parser of wikitext ended with status {status}, perhaps "
            "because memory ran out; rerun the same command to resume, with "
            "fewer --num_processes if it happens again."
        )


@functools.cache
def shared() -> PageParser:
    """Returns the parser of this process."""
    return PageParser()


def serve() -> None:
    """Parses the pages of standard input until it is closed."""
    # Ctrl-C reaches this process too; the main one handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The default action ends the process, in C code too.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for text, hidden, seconds in _requests():
        signal.setitimer(signal.ITIMER_PROF, seconds)
        paragraphs = _extract(text, hidden)
        signal.setitimer(signal.ITIMER_PROF, 0)
        pickle.dump(paragraphs, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _requests() -> Iterator[tuple[str, frozenset[str], float]]:
    while True:
        try:
            yield pickle.load(sys.stdin.buffer)
        except EOFError:
            return


def _extract(text: str, hidden: frozenset[str]) -> list[str] | None:
    """Returns the paragraphs, or None for a page that is nested too deeply."""
    from bert_tf.corpus import wikitext

    try:
        return wikitext.extract(text, hidden)
    except RecursionError:
        return None
