"""Tests of the documentation: its pages, links, code blocks and numbers."""

import ast
import base64
import contextlib
import dataclasses
import doctest
import importlib
import inspect
import json
import os
import pathlib
import re
import shlex
import subprocess

import numpy as np
import pytest
import tensorflow as tf
import yaml
from absl import flags
from absl.testing import parameterized

import bert_tf
from bert_tf.commands.pretrain import PretrainConfig
from bert_tf.config import BertConfig
from bert_tf.flags import cli
from bert_tf.flags import flag_files
from tests.support import made_once
from tests.support.repository import ROOT
from tools import docs_blocks
from tools import docs_data
from tools import docs_links
from tools import docs_reference
from tools import scaling_table


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, in which tags name Python functions."""


_Loader.add_multi_constructor(
    "tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix
)


def _nav():
    config = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), _Loader)
    return config["nav"]


def _names(nav):
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [name for entry in entries for name in _names(entry)]


_OUTSIDE = [x for x in _names(_nav()) if (ROOT / x).is_file()]
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
            path.relative_to(ROOT).as_posix()
            for folder in ("run", "export")
            for path in (ROOT / folder).glob("*.py")
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
        for path in (ROOT / "bert_tf").glob("*/__init__.py"):
            room = path.parent.name
            if room != "commands":
                self.assertIn(
                    f"{docs_reference.API}rooms/{room}.md", self.pages
                )


_FOLDER = ROOT / "notebooks"
_NAMES = ("answer_questions", "classify", "phone", "pretrain", "serve", "tag")
_MOST_BYTES = 100_000


def _cells(name, kind):
    text = (_FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    return [cell for cell in cells if cell["cell_type"] == kind]


def _source(cell):
    return "".join(cell["source"])


class LinksTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        *_PAGES, *(f"notebooks/{name}.ipynb" for name in _NAMES)
    )
    def test_files_and_anchors_exist(self, path):
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".ipynb"):
            cells = _cells(pathlib.Path(path).stem, "markdown")
            text = "\n\n".join(map(_source, cells))
        for link in docs_links.links(text):
            found = docs_links.target(path, link)
            if found is None:
                continue
            name, anchor = found
            self.assertTrue((ROOT / name).is_file(), f"{path}: {link}")
            if anchor:
                page = (ROOT / name).read_text(encoding="utf-8")
                self.assertIn(
                    anchor, docs_links.anchors(page), f"{path}: {link}"
                )

    def test_pictures_are_small_used_and_described(self):
        images = {x.name: x for x in (ROOT / "docs/images").iterdir()}
        text = "".join((ROOT / x).read_text("utf-8") for x in _PAGES)
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


_LIBRARY = ROOT / "bert_tf"


class ArchitectureTest(tf.test.TestCase):
    def test_every_path_exists(self):
        page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
        paths = set(re.findall(r"[`\[]((?:\w+/)+\w+\.py)[`\]]", page))
        self.assertGreater(len(paths), 40)
        for path in sorted(paths):
            exists = (_LIBRARY / path).exists() or (ROOT / path).exists()
            self.assertTrue(exists, path)

    def test_every_room_is_named(self):
        rooms = {
            path.stem
            for path in _LIBRARY.iterdir()
            if path.suffix == ".py" or (path / "__init__.py").exists()
        } - {"__init__"}
        page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
        table = page.split("| packages | contents |")[1].split("\n\n")[0]
        self.assertEqual(rooms - set(re.findall(r"`(\w+)`", table)), set())
        tree = (ROOT / "README.md").read_text("utf-8")
        tree = tree.split("## What is where")[1]
        folders = {room for room in rooms if (_LIBRARY / room).is_dir()}
        self.assertEqual(
            folders - set(re.findall(r"(?m)^  (\w+)/ ", tree)), set()
        )


_PAGES_WITH_BLOCKS = docs_blocks.pages()
# docs/adding_a_task.md shows how to write this script, so run/ lacks it.
_EXAMPLES = ("run/finetune_stars.py",)
# docs/scaling.md leaves flags out of commands, so they cannot be parsed.
_DOTS = "..."


def _commands(page):
    """Returns script and arguments of each command of a page."""
    commands = []
    for block in docs_blocks.read(page):
        if block.language != "bash":
            continue
        text = block.text.replace("\\\n", " ")
        for command in re.findall(
            r"(?m)^(?:\S+/)?python ((?:run|export)/\w+\.py .*)$", text
        ):
            words = shlex.split(command.split(";")[0])
            if words[0] not in _EXAMPLES and _DOTS not in words:
                commands.append(words)
    return commands


class BlocksTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*_PAGES_WITH_BLOCKS)
    def test_code_blocks_of_pages_parse(self, page):
        for block in docs_blocks.read(page):
            with self.subTest(f"{page}:{block.line}"):
                self.assertIn(block.language, docs_blocks.LANGUAGES)
                if block.language == "bash":
                    subprocess.run(
                        ["bash", "-n"], input=block.text.encode(), check=True
                    )
                elif block.language == "python":
                    ast.parse(block.text)
                elif block.language == "json":
                    json.loads(block.text)
                elif block.language == "yaml":
                    self.assertNotEmpty(list(yaml.safe_load_all(block.text)))

    @parameterized.parameters(*_PAGES_WITH_BLOCKS)
    def test_every_fence_is_a_block(self, page):
        text = (ROOT / page).read_text(encoding="utf-8")
        fences = re.findall(r"(?m)^ *(?:```|~~~)", text)
        self.assertLen(fences, 2 * len(list(docs_blocks.read(page))))
        reasons = [x for x in docs_blocks.read(page) if x.reason is not None]
        self.assertLen(reasons, text.count("<!-- not run:"))

    def test_most_blocks_are_executed(self):
        blocks = [
            block
            for page in _PAGES_WITH_BLOCKS
            for block in docs_blocks.read(page)
            if block.language in docs_blocks.EXECUTED
        ]
        left = list(docs_blocks.not_executed())
        self.assertTrue(all(x.reason for x in left))
        # A block that is not run here must name the test that executes it.
        nowhere = []
        for block in left:
            tests = re.findall(r"tests/[\w/]+\.py", block.reason)
            for name in tests:
                self.assertTrue((ROOT / name).is_file(), block.reason)
            if not tests:
                nowhere.append(block)
        self.assertLess(len(nowhere), len(blocks) / 2)


class CommandsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*_PAGES_WITH_BLOCKS)
    def test_scripts_take_the_commands(self, page):
        for command in _commands(page):
            door = (ROOT / command[0]).read_text(encoding="utf-8")
            (name,) = re.findall(r'commands\.run\("(\w+)"\)', door)
            script = importlib.import_module(f"bert_tf.commands.{name}")
            config_cls = inspect.get_annotations(script.main)["config"]
            values = flags.FlagValues()
            read_config = cli.define_flags(config_cls, values)
            with self.subTest(" ".join(command)), contextlib.chdir(ROOT):
                words = [command[0], *flag_files.expand(command[1:])]
                self.assertEqual(values(words), command[:1])
                self.assertIsInstance(read_config(), config_cls)


_DOCS = ROOT / "docs"
_PAGE = _DOCS / "scaling.md"
# The log has the tables and inputs that the page leaves out.
_LOG = _DOCS.parent / "benchmarks" / "log.md"


class ScalingTableTest(tf.test.TestCase, parameterized.TestCase):
    def test_page_or_log_has_what_the_tool_prints(self):
        cluster = scaling_table.published_cluster()
        both = _PAGE.read_text("utf-8") + _LOG.read_text("utf-8")
        for name, table in scaling_table.tables(cluster).items():
            self.assertIn(f"\n\n{table}\n", both, name)
        for quantity in scaling_table.quantities(cluster):
            self.assertIn(quantity, both)

    def test_pretraining_page_has_the_costs(self):
        cluster = scaling_table.published_cluster()
        page = (_DOCS / "pretraining.md").read_text(encoding="utf-8")
        self.assertIn(f"\n\n{scaling_table.cost_table(cluster)}\n", page)

    @parameterized.parameters("base", "lamb")
    def test_costs_are_of_the_flag_files(self, name):
        first, second = scaling_table._RECIPES[f"{name}.flags"]
        steps = 0
        for file, phase in (("", first), ("_phase2", second)):
            values = flags.FlagValues()
            read_config = cli.define_flags(PretrainConfig, values)
            with contextlib.chdir(_DOCS.parent):
                words = [f"--flagfile={name}{file}.flags"]
                values(["pretrain.py", *flag_files.expand(words)])
            config = read_config()
            self.assertEqual(
                phase,
                (
                    config.stop_at_step - steps,
                    config.train_batch_size,
                    config.max_seq_length,
                    config.max_predictions_per_seq,
                ),
            )
            steps = config.stop_at_step

    @parameterized.parameters(1, 2, 7)
    def test_operations_are_those_of_matrix_products(self, layers):
        config = BertConfig(
            vocab_size=11,
            hidden_size=6,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=10,
        )
        length, predictions = 5, 2
        shapes = [
            *[(length, 6, 6)] * 4,  # Query, key, value, output.
            *[(length, 6, 10), (length, 10, 6)],
            *[(length, 3, length), (length, length, 3)] * 2,  # For each head.
        ] * layers
        shapes += [(1, 6, 6), (predictions, 6, 6), (predictions, 6, 11)]
        products = sum(
            rows * inner * columns for rows, inner, columns in shapes
        )
        self.assertEqual(
            scaling_table.operations(config, length, predictions), 6 * products
        )


class _Checker(doctest.OutputChecker):
    """Accepts any output where the example shows none."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


def _example(name):
    """Returns the example of a public name, parsed."""
    value = getattr(bert_tf, name)
    names = {"bert_tf": bert_tf, "np": np, "os": os}
    return doctest.DocTestParser().get_doctest(
        value.__doc__, names, name, None, None
    )


@pytest.mark.slow
class ExamplesTest(tf.test.TestCase):
    def test_every_public_name_has_an_example_that_runs(self):
        made = made_once.folder("documentation", docs_data.write)
        folder = self.create_tempdir().full_path
        for name in os.listdir(made):
            os.symlink(os.path.join(made, name), os.path.join(folder, name))
        # Exporters come last, because they read what `save_model` writes.
        names = sorted(bert_tf.__all__, key=lambda x: x.startswith("export"))
        with contextlib.chdir(folder):
            for name in names:
                with self.subTest(name):
                    example = _example(name)
                    self.assertNotEmpty(example.examples)
                    printed = []
                    runner = doctest.DocTestRunner(_Checker())
                    runner.run(example, out=printed.append)
                    self.assertEqual("".join(printed), "")


if __name__ == "__main__":
    tf.test.main()
