"""Tests for bert_tf.flags.cli."""

import dataclasses
import os
import subprocess
import sys
import textwrap

import tensorflow as tf
from absl import flags
from absl.testing import parameterized

from bert_tf.config import option
from bert_tf.flags import cli

_SCRIPT = textwrap.dedent('''
    """Does one thing."""
    import dataclasses

    from bert_tf.flags import cli
    from bert_tf.config import option
    from bert_tf.errors import UserError

    @dataclasses.dataclass(frozen=True)
    class Config:
        depth: int = option(help_text="How deep to dig.")
        width: int = option(2, "How wide.")

        def __post_init__(self):
            if self.width < 1:
                raise UserError(f"--width is {self.width}.")

    def main(config: Config) -> None:
        if config.depth > 9:
            raise UserError(f"--depth is {config.depth}; dig less.")
        if config.depth > 8:
            raise RuntimeError("a bug")
        print("depth", config.depth, flush=True)

    if __name__ == "__main__":
        cli.run(main)
''')


@dataclasses.dataclass(frozen=True)
class _Config:
    """One field of each kind."""

    text: str = option(help_text="Text.")
    number: int = option(3, "Number.")
    rate: float = option(0.5, "Rate.")
    deep: bool = option(False, "Deep.")
    origin: str | None = option(None, "Origin.", name="from")
    colour: str = option("red", "Colour.", choices=("red", "green"))
    shape: str | None = option(None, "Shape.", choices=("round", "flat"))
    limit: int | None = option(None, "Limit.")
    strip: bool | None = option(None, "Strip.")


def _parse(*args):
    values = flags.FlagValues()
    read_config = cli.define_flags(_Config, values)
    values(["program", *args])
    return read_config()


class DefineFlagsTest(tf.test.TestCase, parameterized.TestCase):
    def test_defaults_are_those_of_the_dataclass(self):
        self.assertEqual(_parse("--text=a"), _Config(text="a"))

    def test_every_kind_of_value_is_read(self):
        config = _parse(
            "--text=a b",
            "--number=-7",
            "--rate=1e-4",
            "--deep",
            "--from=there",
            "--colour=green",
            "--shape=flat",
            "--limit=0",
            "--nostrip",
        )
        expected = _Config(
            text="a b",
            number=-7,
            rate=1e-4,
            deep=True,
            origin="there",
            colour="green",
            shape="flat",
            limit=0,
            strip=False,
        )
        self.assertEqual(config, expected)

    @parameterized.parameters(
        ((), None), (("--strip",), True), (("--strip=false",), False)
    )
    def test_optional_bool_has_three_values(self, args, expected):
        self.assertIs(_parse("--text=a", *args).strip, expected)

    @parameterized.parameters(
        ("--colour=blue", "colour"),
        ("--shape=red", "shape"),
        ("--number=1.5", "number"),
        ("--rate=much", "rate"),
        ("--numbre=1", "numbre"),
        ("--origin=there", "origin"),
        ("--limit=", "limit"),
    )
    def test_rejects(self, flag, name):
        with self.assertRaisesRegex(flags.Error, name):
            _parse("--text=a", flag)

    def test_field_without_default_is_required(self):
        with self.assertRaisesRegex(flags.IllegalFlagValueError, "text"):
            _parse("--number=1")

    def test_last_flag_wins_over_a_flagfile(self):
        path = os.path.join(self.create_tempdir().full_path, "a.flags")
        with open(path, "w", encoding="utf-8") as file:
            file.write("# A comment.\n--text=a\n--number=4\n--strip\n")
        config = _parse(f"--flagfile={path}", "--number=5")
        self.assertEqual(config, _Config(text="a", number=5, strip=True))


class RunTest(tf.test.TestCase, parameterized.TestCase):
    def _run(self, *args):
        path = self.create_tempfile("script.py", _SCRIPT).full_path
        return subprocess.run(
            [sys.executable, path, *args],
            capture_output=True,
            text=True,
            check=False,
        )

    def test_calls_main_with_the_configuration(self):
        result = self._run("--depth=7")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "depth 7\n")

    @parameterized.parameters(
        ("--depth=10", "ERROR: --depth is 10; dig less."),
        ("--depth=1 --width=0", "ERROR: --width is 0."),
    )
    def test_user_error_is_one_sentence_and_status_1(self, args, message):
        result = self._run(*args.split())
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, message + "\n")
        self.assertEmpty(result.stdout)

    def test_a_bug_keeps_its_traceback(self):
        result = self._run("--depth=9")
        self.assertEqual(result.returncode, 1)
        self.assertIn("Traceback", result.stderr)

    @parameterized.parameters(
        ("", "depth"),
        ("--depth=1 --widht=1", "Did you mean: width"),
        ("--depth=many", "depth"),
        ("--depth=1 stray", "stray"),
    )
    def test_wrong_flags_stop_without_traceback(self, args, message):
        result = self._run(*args.split())
        self.assertEqual(result.returncode, 1)
        self.assertIn(message, result.stdout + result.stderr)
        self.assertNotIn("Traceback", result.stderr)

    def test_help_lists_the_flags(self):
        result = self._run("--help")
        self.assertIn("Does one thing.", result.stdout)
        self.assertIn("How deep to dig.", result.stdout)


if __name__ == "__main__":
    tf.test.main()
