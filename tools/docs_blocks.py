"""Finds the documentation's code blocks, and those that are not executed.

`make docs-test` executes each block of bash and Python, unless a comment such
as this comes before the block:

    <!-- not run: needs two hosts -->
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterator

from tools import docs_links

EXECUTED = ("bash", "python")
# Languages that pages may use; tests parse some of them without execution.
LANGUAGES = (
    *EXECUTED,
    *"javascript json kotlin mermaid starlark swift text yaml".split(),
)
# Pages outside docs/ with code to execute.
OUTSIDE = ("README.md", "CONTRIBUTING.md", "export/deploy/README.md")
_BLOCK = re.compile(
    r"(?ms)^(?:<!-- not run: (?P<reason>[^>]*?) -->\n+)?"
    r"(?P<fence>`{3,}|~{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)"
    r"^(?P=fence)[ ]*$"
)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced code block of a page.

    Attributes:
      page: The path of the page in the repository.
      line: The line of the first fence.
      language: The word after the first fence, or "".
      text: The lines between the fences.
      reason: Why it is not executed; None if it is executed or only parsed.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str | None

    @property
    def is_executed(self) -> bool:
        return self.language in EXECUTED and self.reason is None

    @property
    def title(self) -> str:
        """The first line that is not blank or a comment, shortened."""
        lines = (x.strip() for x in self.text.splitlines())
        first = next((x for x in lines if x and not x.startswith("#")), "")
        return first if len(first) < 70 else f"{first[:66]}..."


def pages() -> list[str]:
    """Returns the paths of all pages with code, in the repository."""
    return [*OUTSIDE, *(f"docs/{name}" for name in docs_links.pages())]


def read(page: str) -> Iterator[Block]:
    """Yields the code blocks of a page."""
    path = pathlib.Path(docs_links.ROOT / page)
    text = path.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        yield Block(
            page,
            text.count("\n", 0, match.start("fence")) + 1,
            match["language"].strip(),
            match["text"],
            match["reason"],
        )


def overview() -> str:
    """Returns a page with the blocks that are not executed, as Markdown."""
    rows = [
        f"| {block.page}, line {block.line} | `{block.title}` | "
        f"{block.reason} |"
        for block in not_executed()
    ]
    executed = sum(x.is_executed for page in pages() for x in read(page))
    return "\n".join(
        [
            "# Code that is not executed\n",
            f"`make docs-test` executes {executed} blocks of bash and Python "
            "in these pages, in the order of each page, with tiny models. "
            f"These {len(rows)} are parsed only:\n",
            "| place | begins with | reason |",
            "|---|---|---|",
            *rows,
        ]
    )


def not_executed() -> Iterator[Block]:
    """Yields the blocks of all pages that could be executed and are not."""
    for page in pages():
        for block in read(page):
            if block.language in EXECUTED and not block.is_executed:
                yield block
