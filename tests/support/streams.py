"""Streams in place of standard error."""

import io


class Stream(io.StringIO):
    """Standard error, as a terminal or as a file."""

    def __init__(self, is_terminal):
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal
