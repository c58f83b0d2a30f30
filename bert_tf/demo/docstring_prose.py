r"""Docstrings to prose: paragraphs without code and without markup.

Reads what is common to reStructuredText, Markdown and the conventions of
Google and numpy. It need not be perfect: what does not look like a sentence in
the end is dropped.
"""

import dataclasses
import inspect
import re

_FENCED_CODE = re.compile(r"(?ms)^[ ]*(```|~~~).*?(?:^[ ]*\1[^\n]*$|\Z)")
_DOCTEST = re.compile(r">>>|In \[\d+\]:")
_RULE = re.compile(r"([-=~^*#\"'+_.])\1{2,}$")
_TABLE = re.compile(r"[|+].*[|+]$|[-=]+( +[-=]+)+$")
_HEADING = re.compile(r"#+ |[A-Z][A-Za-z ]{,30}:$")
_DIRECTIVE = re.compile(r"\.\. +([\w-]+)::|\.\. ")
_BULLET = re.compile(r"(?:[-*+\u2022]|\(?\d{1,2}[.)]|\(?[a-z]\)) +(?=\S)")
# `name: text` of Google's convention begins a paragraph; `name : type` of
# numpy's stands in front of one. `:param name: text` is Sphinx's.
_ENTRY = re.compile(
    r"\*{0,2}`{0,2}[\w.]+`{0,2}( ?\([^)]*\))?: +\S|:\w+( [^:`]*)?: +\S"
)
_TYPE_LINE = re.compile(r"[*\w.`, ]+ : \S.*$|[\w.]+ : *$")
# What is indented under these directives is text.
_TEXT_DIRECTIVES = {"note", "warning", "tip", "important", "seealso", "hint"}

_INLINE = (
    (re.compile(r"^:\w+ ([^:`]*): "), r"\1: "),  # :param name: text
    (re.compile(r"^:\w+: "), ""),  # :return: text
    (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),  # [text](address)
    (re.compile(r":[\w:+-]+:`~(?:[^`]*\.)?([^`]*)`"), r"\1"),  # :a:`~b.c`
    (re.compile(r":[\w:+-]+:`([^`<]*?)(?: *<[^>]*>)?`"), r"\1"),  # :a:`b <c>`
    (re.compile(r"`([^`<]+?) *<[^>]*>`_{1,2}"), r"\1"),  # `text <address>`_
    (re.compile(r"\[[\w#*.]+\]_"), ""),  # footnotes
    (re.compile(r"``([^`]+)``|`([^`]+)`(?:_\b)?"), r"\1\2"),
    (re.compile(r"(?<![\w*])(\*{1,2})([^\s*](?:[^*]*[^\s*])?)\1(?!\w)"), r"\2"),
    (re.compile(r"<?\bhttps?://[^\s>)]+[>]?"), ""),
    (re.compile(r"</?\w+[^<>]*>"), ""),  # tags of HTML
    (re.compile(r"::$"), ":"),
    (re.compile(r"\s+"), " "),
)

_WORD = re.compile(r"[A-Za-z]{2,}")
_SENTENCE_END = re.compile(r"[.!?:][\"')\]]*$")
_CODE = re.compile(r"[={}\\<>]|\w\(|\bdef |\breturn \w+\(|\$")
_MIN_WORDS = 6
_MIN_LETTERS = 0.78  # Spaces count as letters.
_MAX_CODE_SIGNS = 0.12  # Per word.


def extract_paragraphs(docstring: str) -> list[str]:
    """Returns the paragraphs of prose of a docstring, one line each."""
    text = _FENCED_CODE.sub("", inspect.cleandoc(docstring))
    paragraphs = (_strip_markup(block) for block in _split_blocks(text))
    return [paragraph for paragraph in paragraphs if is_prose(paragraph)]


def is_prose(text: str) -> bool:
    """Returns whether text reads like a sentence, not like code or a title."""
    words = len(_WORD.findall(text))
    if words < _MIN_WORDS or not _SENTENCE_END.search(text):
        return False
    letters = sum(char.isalpha() or char == " " for char in text)
    code_signs = len(_CODE.findall(text))
    return (
        letters >= _MIN_LETTERS * len(text)
        and code_signs <= _MAX_CODE_SIGNS * words
    )


def _strip_markup(text: str) -> str:
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    return text.strip()


@dataclasses.dataclass
class _Splitter:
    """Goes through the lines of a docstring and gathers blocks of text.

    Attributes:
      blocks: Finished blocks, their lines joined by spaces.
      lines: Lines of the block at hand.
      indent: Indentation of its first line.
      last_indent: Indentation of its last line.
      skip_deeper: Lines that are indented deeper than this are skipped.
      skip_to_blank: Whether to skip up to the next blank line.
    """

    blocks: list[str] = dataclasses.field(default_factory=list)
    lines: list[str] = dataclasses.field(default_factory=list)
    indent: int = 0
    last_indent: int = 0
    skip_deeper: int | None = None
    skip_to_blank: bool = False

    def end_block(self) -> None:
        if self.lines:
            block = " ".join(self.lines)
            self.blocks.append(block)
            if block.endswith("::"):
                self.skip_deeper = self.indent
        self.lines = []

    def read(self, line: str) -> None:
        """Takes one line, stripped at its end."""
        stripped = line.lstrip()
        indent = len(line) - len(stripped)
        if not stripped:
            self.end_block()
            self.skip_to_blank = False
        elif not self._skips(stripped, indent):
            self._read_text(stripped, indent)

    def _skips(self, stripped: str, indent: int) -> bool:
        """Returns whether a line is no text, and notes what follows from it."""
        if self.skip_deeper is not None:
            if indent > self.skip_deeper:
                return True
            self.skip_deeper = None
        if self.skip_to_blank or _DOCTEST.match(stripped):
            self.end_block()
            self.skip_to_blank = True
            return True
        if directive := _DIRECTIVE.match(stripped):
            self.end_block()
            if directive[1] not in _TEXT_DIRECTIVES:
                self.skip_deeper = indent
            return True
        if _RULE.match(stripped):
            if len(self.lines) == 1:  # The title that it underlines.
                self.lines = []
            return True
        if _HEADING.match(stripped) or _TABLE.match(stripped):
            self.end_block()
            return True
        if _TYPE_LINE.match(stripped):
            self.end_block()
            return True
        return False

    def _read_text(self, stripped: str, indent: int) -> None:
        bullet = _BULLET.match(stripped)
        begins = bullet or _ENTRY.match(stripped)
        # `name` with its explanation indented below it ends where the next
        # name stands as far to the left.
        if begins or indent < self.indent or self.last_indent > indent:
            self.end_block()
        if not self.lines:
            self.indent = indent
        self.last_indent = indent
        self.lines.append(stripped[bullet.end() :] if bullet else stripped)


def _split_blocks(text: str) -> list[str]:
    splitter = _Splitter()
    for line in text.split("\n"):
        splitter.read(line.rstrip())
    splitter.end_block()
    return splitter.blocks
