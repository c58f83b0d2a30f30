"""Rewrites links of Markdown pages: to files on GitHub, to pages on the site.

A page's name is its path in the repository. On the site, docs/serving.md is
serving.md, a file elsewhere keeps its path, as export/deploy/README.md, and a
notebook is a page, as notebooks/serve.md.
"""

import pathlib
import posixpath
import re
from collections.abc import Callable
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
_DOCS = "docs/"
_FENCE = re.compile(r"(?ms)^( *)(`{3,}|~{3,}).*?^\1\2[ \t]*$")
_LINK = re.compile(r"(?<=\])\(([^()\s]+)\)")
_HEADING = re.compile(r"(?m)^#{1,6} +(.*?)[ #]*$")
_ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|//", re.IGNORECASE)


def pages() -> list[str]:
    """Returns the pages in docs/ by their names on the site, sorted."""
    paths = (ROOT / _DOCS).rglob("*.md")
    return sorted(x.relative_to(ROOT / _DOCS).as_posix() for x in paths)


def repository_path(page: str) -> str:
    """Returns the path in the repository of a page of the site."""
    return _DOCS + page if (ROOT / _DOCS / page).is_file() else page


def site_path(path: str) -> str:
    """Returns the path on the site of a file of the repository."""
    return re.sub(r"\.ipynb$", ".md", path.removeprefix(_DOCS))


def target(path: str, link: str) -> tuple[str, str] | None:
    """Returns the file and the anchor that a link points to.

    Args:
      path: The path of the file that has the link, in the repository.
      link: The text between the link's parentheses.

    Returns:
      A path in the repository and an anchor or "", or None for an address
      elsewhere.
    """
    if _ELSEWHERE.match(link):
        return None
    name, _, anchor = link.partition("#")
    if not name:
        return path, anchor
    return posixpath.normpath(
        posixpath.join(posixpath.dirname(path), name)
    ), anchor


def _outside_fences(text: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def links(text: str) -> Iterator[str]:
    """Yields the links of a page's text, except those in code blocks."""
    found = []
    _outside_fences(text, lambda part: found.extend(_LINK.findall(part)) or "")
    yield from found


def rewrite(path: str, text: str) -> str:
    """Returns the text of a file with its links rewritten for the site."""
    folder = posixpath.dirname(site_path(path))

    def replace(match: re.Match[str]) -> str:
        found = target(path, match[1])
        if found is None or match[1].startswith("#"):
            return match[0]
        name, anchor = found
        name = posixpath.relpath(site_path(name), folder or ".")
        return f"({name}#{anchor})" if anchor else f"({name})"

    return _outside_fences(text, lambda part: _LINK.sub(replace, part))


def anchors(text: str) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    headings = []
    _outside_fences(
        text, lambda part: headings.extend(_HEADING.findall(part)) or ""
    )
    names = set()
    for heading in headings:
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        count = found[slug] = found.get(slug, -1) + 1
        names.add(f"{slug}-{count}" if count else slug)
    return names
