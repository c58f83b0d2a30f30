"""Checks that every command in README.md and docs/ parses."""

import contextlib
import importlib
import inspect
import pathlib
import re
import shlex

import tensorflow as tf
from absl import flags
from absl.testing import parameterized

from bert_tf.flags import cli
from bert_tf.flags import flag_files

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PAGES = ("README.md", *(f"docs/{x.name}" for x in _ROOT.glob("docs/*.md")))
# docs/finetuning.md defines its dots below.
_DOTS = " ..."
# docs/adding_a_task.md shows how to write this one.
_EXAMPLES = ("run/finetune_stars.py",)
_FLAGS = re.compile(r"`\.\.\.` stands for\n\n```\n(.*)\n```")


def _commands(page):
    """Returns script and arguments of each command of a page."""
    text = (_ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    common = _FLAGS.search(text)
    commands = []
    for command in re.findall(
        r"(?m)^python ((?:run|export)/\w+\.py .*)$", text
    ):
        if command.endswith(_DOTS):
            command = command.removesuffix("...") + common[1]
        words = shlex.split(command)
        if words[0] not in _EXAMPLES:
            commands.append(words)
    return commands


class DocumentationTest(tf.test.TestCase, parameterized.TestCase):
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

    def test_pages_have_commands(self):
        self.assertGreater(len(_commands("docs/finetuning.md")), 25)
        self.assertGreater(len(_commands("README.md")), 12)
        self.assertGreater(len(_commands("docs/serving.md")), 6)


if __name__ == "__main__":
    tf.test.main()
