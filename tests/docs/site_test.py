"""Checks the site, the notebooks and docs/architecture.md as they are kept."""

import ast
import base64
import dataclasses
import importlib
import inspect
import json
import pathlib
import re

import tensorflow as tf
import yaml
from absl.testing import parameterized

import bert_tf
from tools import docs_links
from tools import docs_reference

_ROOT = pathlib.Path(__file__).resolve().parents[2]


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, in which tags name Python functions."""


_Loader.add_multi_constructor(
    "tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix
)


def _nav():
    config = yaml.load((_ROOT / "mkdocs.yml").read_text("utf-8"), _Loader)
    return config["nav"]


def _names(nav):
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [name for entry in entries for name in _names(entry)]


_OUTSIDE = [x for x in _names(_nav()) if (_ROOT / x).is_file()]
_PAGES = [*(f"docs/{x}" for x in docs_links.pages()), *_OUTSIDE, "README.md"]


class MenuTest(tf.test.TestCase):
    def test_lists_every_page_once_and_no_other(self):
        names = _names(_nav())
        self.assertLen(set(names), len(names))
        self.assertEqual(
            {x for x in names if not x.endswith("/*")},
            {*docs_links.pages(), *_OUTSIDE},
        )
        self.assertIn("export/deploy/README.md", _OUTSIDE)


class ReferenceTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.pages = docs_reference.pages()

    def test_every_script_has_a_page_with_all_its_flags(self):
        scripts = {
            path.relative_to(_ROOT).as_posix()
            for folder in ("run", "export")
            for path in (_ROOT / folder).glob("*.py")
            if path.stem != "__init__"
        }
        self.assertEqual(set(docs_reference.scripts()), scripts)
        for path, name in docs_reference.scripts().items():
            page = self.pages[f"{docs_reference.COMMANDS}{name}.md"]
            module = importlib.import_module(f"bert_tf.commands.{name}")
            config_cls = inspect.get_annotations(module.main)["config"]
            self.assertIn(f"`python {path}`", page)
            for field in dataclasses.fields(config_cls):
                flag = field.metadata["name"] or field.name
                self.assertRegex(page, rf"`--(\[no\])?{flag}[=`]")

    def test_every_public_name_is_on_a_page(self):
        text = "\n".join(self.pages.values())
        for name in bert_tf.__all__:
            self.assertRegex(text, rf"(?m)^::: bert_tf\.[\w.]+\.{name}$")
        self.assertEqual(
            set(docs_reference.public_names()), set(bert_tf.__all__)
        )

    def test_every_package_has_a_page(self):
        for path in (_ROOT / "bert_tf").glob("*/__init__.py"):
            room = path.parent.name
            if room != "commands":
                self.assertIn(
                    f"{docs_reference.API}rooms/{room}.md", self.pages
                )


class LinksTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(_PAGES)
    def test_files_and_anchors_exist(self, path):
        text = (_ROOT / path).read_text(encoding="utf-8")
        for link in docs_links.links(text):
            found = docs_links.target(path, link)
            if found is None:
                continue
            name, anchor = found
            self.assertTrue((_ROOT / name).is_file(), f"{path}: {link}")
            if anchor:
                page = (_ROOT / name).read_text(encoding="utf-8")
                self.assertIn(
                    anchor, docs_links.anchors(page), f"{path}: {link}"
                )

    def test_pictures_are_small_used_and_described(self):
        images = {x.name: x for x in (_ROOT / "docs/images").iterdir()}
        text = "".join((_ROOT / x).read_text("utf-8") for x in _PAGES)
        used = re.findall(r"!\[([^\]]*)\]\([^)]*images/([\w.]+)\)", text)
        used += re.findall(r'<img alt="([^"]*)" src="\S*/([\w.]+)"', text)
        self.assertEqual({name for _, name in used}, set(images))
        for description, name in used:
            self.assertGreater(len(description), 20, name)
            self.assertLess(images[name].stat().st_size, 100_000, name)

    @parameterized.parameters(
        ("docs/a.md", "b.md#c", "b.md#c"),
        ("docs/a.md", "../x/README.md", "x/README.md"),
        ("x/README.md", "../docs/a.md#b", "../a.md#b"),
        ("x/y/README.md", "../../CHANGELOG.md", "../../CHANGELOG.md"),
        ("CHANGELOG.md", "docs/a.md", "a.md"),
        ("docs/x/a.md", "../../y/b.ipynb", "../y/b.md"),
        ("y/b.ipynb", "../docs/a.md", "../a.md"),
        ("docs/a.md", "#b", "#b"),
        ("docs/a.md", "https://example.com/b.md", "https://example.com/b.md"),
    )
    def test_links_become_those_of_the_site(self, path, link, expected):
        text = f"See [it]({link}).\n\n```\n[it]({link})\n```\n"
        self.assertEqual(
            docs_links.rewrite(path, text),
            f"See [it]({expected}).\n\n```\n[it]({link})\n```\n",
        )


_FOLDER = _ROOT / "notebooks"
_NAMES = ("answer_questions", "classify", "phone", "pretrain", "serve", "tag")
_MOST_BYTES = 100_000


def _cells(name, kind):
    text = (_FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    return [cell for cell in cells if cell["cell_type"] == kind]


def _source(cell):
    return "".join(cell["source"])


class NotebooksTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*_NAMES)
    def test_cells_parse_and_ran_in_order(self, name):
        cells = _cells(name, "code")
        numbers = [cell["execution_count"] for cell in cells]
        self.assertEqual(numbers, list(range(1, len(cells) + 1)))
        for cell in cells:
            ast.parse(re.sub(r"(?m)^!.*$", "", _source(cell)))

    @parameterized.parameters(*_NAMES)
    def test_outputs_are_kept_with_a_plot_and_without_errors(self, name):
        outputs = [x for cell in _cells(name, "code") for x in cell["outputs"]]
        self.assertNotIn("error", [x["output_type"] for x in outputs])
        pictures = [
            base64.b64decode("".join(x["data"]["image/png"]))
            for x in outputs
            if "image/png" in x.get("data", {})
        ]
        self.assertNotEmpty(pictures)
        for picture in pictures:
            self.assertLess(len(picture), _MOST_BYTES)

    @parameterized.parameters(*_NAMES)
    def test_names_no_place_of_one_machine(self, name):
        text = (_FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
        self.assertNotRegex(text, r"/(home|root|Users|tmp|work)/\w")

    @parameterized.parameters(*_NAMES)
    def test_links_name_files_and_headings(self, name):
        path = f"notebooks/{name}.ipynb"
        for cell in _cells(name, "markdown"):
            for link in docs_links.links(_source(cell)):
                file, anchor = docs_links.target(path, link)
                self.assertTrue((_ROOT / file).is_file(), link)
                if anchor:
                    page = (_ROOT / file).read_text(encoding="utf-8")
                    self.assertIn(anchor, docs_links.anchors(page), link)


_LIBRARY = _ROOT / "bert_tf"


class ArchitectureTest(tf.test.TestCase):
    def test_every_path_exists(self):
        page = (_ROOT / "docs" / "architecture.md").read_text("utf-8")
        paths = set(re.findall(r"[`\[]((?:\w+/)+\w+\.py)[`\]]", page))
        self.assertGreater(len(paths), 40)
        for path in sorted(paths):
            exists = (_LIBRARY / path).exists() or (_ROOT / path).exists()
            self.assertTrue(exists, path)

    def test_every_room_is_named(self):
        rooms = {
            path.stem
            for path in _LIBRARY.iterdir()
            if path.suffix == ".py" or (path / "__init__.py").exists()
        } - {"__init__"}
        page = (_ROOT / "docs" / "architecture.md").read_text("utf-8")
        table = page.split("| rooms | contents |")[1].split("\n\n")[0]
        self.assertEqual(rooms - set(re.findall(r"`(\w+)`", table)), set())
        tree = (_ROOT / "README.md").read_text("utf-8")
        tree = tree.split("## What is where")[1]
        folders = {room for room in rooms if (_LIBRARY / room).is_dir()}
        self.assertEqual(
            folders - set(re.findall(r"(?m)^  (\w+)/ ", tree)), set()
        )


if __name__ == "__main__":
    tf.test.main()
