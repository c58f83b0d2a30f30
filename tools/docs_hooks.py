"""Hooks of MkDocs: pages from outside docs/, and links to them."""

import pathlib
import sys
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File
from mkdocs.structure.files import Files

# MkDocs loads a hook from its path alone.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tools import docs_links  # noqa: E402


def _names(nav: Any) -> list[str]:
    """Returns the pages in a menu."""
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [name for entry in entries for name in _names(entry)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the menu that are files outside docs/."""
    for name in _names(config.nav):
        path = docs_links.ROOT / name
        if files.get_file_from_path(name) is None and path.is_file():
            text = path.read_text(encoding="utf-8")
            files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links between files into links between pages."""
    path = docs_links.repository_path(page.file.src_uri)
    return docs_links.rewrite(path, markdown)
