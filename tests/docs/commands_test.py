"""Checks that every code block and command of the documentation parses."""

import ast
import contextlib
import importlib
import inspect
import json
import pathlib
import re
import shlex
import subprocess

import tensorflow as tf
import yaml
from absl import flags
from absl.testing import parameterized

from bert_tf.flags import cli
from bert_tf.flags import flag_files
from tools import docs_blocks

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PAGES = docs_blocks.pages()
# docs/adding_a_task.md shows how to write this one.
_EXAMPLES = ("run/finetune_stars.py",)
# docs/scaling.md leaves flags out.
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
    @parameterized.parameters(*_PAGES)
    def test_blocks_parse(self, page):
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

    @parameterized.parameters(*_PAGES)
    def test_every_fence_is_a_block(self, page):
        text = (_ROOT / page).read_text(encoding="utf-8")
        fences = re.findall(r"(?m)^ *(?:```|~~~)", text)
        self.assertLen(fences, 2 * len(list(docs_blocks.read(page))))
        reasons = [x for x in docs_blocks.read(page) if x.reason is not None]
        self.assertLen(reasons, text.count("<!-- not run:"))

    def test_most_blocks_are_executed(self):
        blocks = [
            block
            for page in _PAGES
            for block in docs_blocks.read(page)
            if block.language in docs_blocks.EXECUTED
        ]
        left = list(docs_blocks.not_executed())
        self.assertTrue(all(x.reason for x in left))
        # The others are executed by the test that the reason names.
        nowhere = []
        for block in left:
            tests = re.findall(r"tests/[\w/]+\.py", block.reason)
            for name in tests:
                self.assertTrue((_ROOT / name).is_file(), block.reason)
            if not tests:
                nowhere.append(block)
        self.assertLess(len(nowhere), len(blocks) / 2)


class CommandsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*_PAGES)
    def test_scripts_take_the_commands(self, page):
        for command in _commands(page):
            door = (_ROOT / command[0]).read_text(encoding="utf-8")
            (name,) = re.findall(r'commands\.run\("(\w+)"\)', door)
            script = importlib.import_module(f"bert_tf.commands.{name}")
            config_cls = inspect.get_annotations(script.main)["config"]
            values = flags.FlagValues()
            read_config = cli.define_flags(config_cls, values)
            with (
                self.subTest(" ".join(command)),
                contextlib.chdir(_ROOT),
            ):
                words = [command[0], *flag_files.expand(command[1:])]
                self.assertEqual(values(words), command[:1])
                self.assertIsInstance(read_config(), config_cls)


if __name__ == "__main__":
    tf.test.main()
