"""MkDocs hooks: add generated pages and pages outside docs/, rewrite links."""

import pathlib
import sys
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from mkdocs.structure.files import Files

# MkDocs loads a hook by its path, so `tools` is not importable without this.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tools import docs_blocks  # noqa: E402
from tools import docs_links  # noqa: E402
from tools import docs_notebooks  # noqa: E402
from tools import docs_reference  # noqa: E402

# The text of each generated page, and the bytes of other files, by name.
_generated: dict[str, str] = {}
_files: dict[str, bytes] = {}
_BLOCKS = "reference/blocks/index.md"
# The weights of pages in the site's search, by path; other pages have 1. Guides
# answer most questions better than lists of names.
_BOOSTS = {
    "guides/": 3,
    "pretraining.md": 3,
    "choosing.md": 2,
    "concepts/": 2,
    "faq.md": 2,
    "glossary.md": 3,
    "quickstart.md": 2,
    "scaling.md": 2,
    "serving.md": 2,
    "reference/api/rooms/": 0.2,
    "reference/": 0.6,
    "CHANGELOG.md": 0.2,
    "results.md": 0.6,
}


def _names(nav: Any) -> list[str]:
    """Returns the pages in a menu."""
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [name for entry in entries for name in _names(entry)]


def _expand(nav: Any, pages: list[str]) -> Any:
    """Returns the menu with each `folder/*` replaced by the folder's pages."""
    if isinstance(nav, dict):
        return {title: _expand(value, pages) for title, value in nav.items()}
    if isinstance(nav, list):
        return [_expand(entry, pages) for entry in nav]
    if not nav.endswith("/*"):
        return nav
    return _folder(nav.removesuffix("*"), pages)


def _folder(folder: str, pages: list[str]) -> list[Any]:
    """Returns the menu of a folder: its pages, then its subfolders' pages."""
    inside = [x for x in pages if x.startswith(folder)]
    here = [x for x in inside if "/" not in x.removeprefix(folder)]
    below = [x for x in inside if x not in here]
    return [*here, {"Packages": below}] if below else here


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Generates pages and adds them to the menu."""
    try:
        _generated.update(docs_reference.pages())
    except docs_reference.UndocumentedError as error:
        raise PluginError(str(error)) from error
    pages, files = docs_notebooks.pages()
    _generated.update(pages)
    _generated[_BLOCKS] = docs_blocks.overview()
    _files.update(files)
    config.nav = _expand(config.nav, list(_generated))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages, and the menu's pages outside docs/."""
    for name, content in (_generated | _files).items():
        files.append(File.generated(config, name, content=content))
    for name in _names(config.nav):
        path = docs_links.ROOT / name
        if files.get_file_from_path(name) is None and path.is_file():
            text = path.read_text(encoding="utf-8")
            files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links between files into links between pages; ranks pages."""
    for start, boost in _BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": boost}
            break
    path = docs_links.repository_path(page.file.src_uri)
    return docs_links.rewrite(path, markdown)
