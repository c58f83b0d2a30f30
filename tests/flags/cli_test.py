"""Tests for bert_tf.flags: command lines, flag files and rules."""

import contextlib
import dataclasses
import importlib
import io
import math
import os
import pathlib
import re
import sys
import textwrap
import typing
from unittest import mock

import tensorflow as tf
from absl import flags
from absl.testing import parameterized

from bert_tf import commands
from bert_tf.commands.convert_checkpoint import ConvertCheckpointConfig
from bert_tf.commands.pretrain import PretrainConfig
from bert_tf.config import GROUPS
from bert_tf.config import IGNORED
from bert_tf.config import REQUIRED
from bert_tf.config import option
from bert_tf.errors import UserError
from bert_tf.flags import cli
from bert_tf.flags import flag_files
from bert_tf.flags import options
from bert_tf.io import files
from bert_tf.io import paths
from tests.support import scripts

_SCRIPT = textwrap.dedent('''
    """Does one thing."""
    import dataclasses
    import signal

    from bert_tf.flags import cli
    from bert_tf.config import REQUIRED, option
    from bert_tf.errors import Preempted, UserError

    def interrupt(is_changed):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            print(signal.getsignal(signal.SIGINT) is signal.SIG_DFL)
            if is_changed:
                raise ImportError("no module") from error
            raise

    @dataclasses.dataclass(frozen=True)
    class Config:
        depth: int = option("How deep to dig.", REQUIRED)
        width: int = option("How wide.", 2)
        deep: bool = option("Deep.", False)
        origin: str | None = option(
            "Origin.", name="from", choices=("tf1", "huggingface")
        )
        dev_file: str | None = option("File.", reads="file")

        def __post_init__(self):
            if self.width < 1:
                raise UserError(f"--width is {self.width}.")

    def main(config: Config) -> None:
        if config.depth > 9:
            raise UserError(f"--depth is {config.depth}; dig less.")
        if config.depth > 8:
            raise RuntimeError("a bug")
        if config.depth == 6:
            raise Preempted("Stopped.", 130)
        if config.depth in (4, 5):
            interrupt(config.depth == 5)
        print("depth", config.depth, flush=True)

    if __name__ == "__main__":
        cli.run(main)
''')


@dataclasses.dataclass(frozen=True)
class _Config:
    """A configuration with one field of each kind."""

    text: str = option("Text.", REQUIRED)
    number: int = option("Number.", 3)
    rate: float = option("Rate.", 0.5)
    deep: bool = option("Deep.", False)
    origin: str | None = option("Origin.", name="from")
    colour: str = option("Colour.", "red", choices=("red", "green"))
    shape: str | None = option("Shape.", choices=("round", "flat"))
    limit: int | None = option("Limit.")
    strip: bool | None = option("Strip.")


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
    def test_rejected_flag_is_named_in_error(self, flag, name):
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


class CommandLineTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("run/pretrain.py", "run/serve.py", "python run/serve.py"),
        ("bert-tf pretrain", "run/fill_mask.py", "bert-tf fill-mask"),
        ("bert-tf serve", "export/savedmodel.py", "bert-tf export-savedmodel"),
        ("bert-tf serve", "export/verify.py", "bert-tf verify-export"),
        # No script has this name, so the wheel's command must be named.
        ("ipykernel", "run/moved_away.py", "bert-tf moved-away"),
    )
    def test_is_the_program_that_the_user_has(self, started, script, expected):
        with mock.patch.object(sys, "argv", [started]):
            line = cli.command_line(script, _Config("a b", deep=True))
        self.assertEqual(line, f"{expected} --text='a b' --deep")


class RunTest(tf.test.TestCase, parameterized.TestCase):
    def _run(self, *args):
        path = self.create_tempfile("script.py", _SCRIPT).full_path
        return scripts.python(path, *args)

    def test_calls_main_with_the_configuration(self):
        result = self._run("--depth=7")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "depth 7\n")

    def test_a_bug_keeps_its_traceback(self):
        result = self._run("--depth=9")
        self.assertEqual(result.returncode, 1)
        self.assertIn("Traceback", result.stderr)

    @parameterized.parameters(
        ("", "--depth is required; --help lists the flags."),
        ("--depth=10", "--depth is 10; dig less."),
        ("--depth=1 --width=0", "--width is 0."),
        (
            "--depth=1 --widht=1",
            "There is no flag --widht; did you mean --width?",
        ),
        (
            "--depth=1 --zebra=1",
            "There is no flag --zebra; --help lists the flags.",
        ),
        (
            "--depth=1 --deep=yep",
            "--deep must be true or false. Received: 'yep'.",
        ),
        (
            "--depth=1 --from=hf",
            "--from must be one of tf1, huggingface. Received: 'hf'; did you "
            "mean huggingface?",
        ),
        (
            "--depth=many",
            "--depth must be a whole number. Received: 'many'.",
        ),
        (
            "--depth=1 stray",
            "Received an argument without a flag: 'stray'. Write "
            "--flag=value, with quotes around spaces.",
        ),
        (
            "--depth=1 dev.csv",
            "Received an argument without a flag: 'dev.csv'. If it belongs to "
            "--dev_file, write --dev_file=dev.csv.",
        ),
        (
            "--depth=1 deep",
            "Received an argument without a flag: 'deep'. Write --deep.",
        ),
        (
            "--depth=1 --dev_file=",
            "--dev_file must name a file or folder. Received: ''; name one, or "
            "drop the flag.",
        ),
    )
    def test_wrong_flags_are_one_sentence(self, args, message):
        result = self._run(*args.split())
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, f"ERROR: {message}\n")
        self.assertEmpty(result.stdout)

    @parameterized.parameters(4, 5)
    def test_ctrl_c_is_one_word_and_status_130(self, depth):
        result = self._run(f"--depth={depth}")
        self.assertEqual(result.returncode, 130)
        self.assertEqual(result.stderr, "Interrupted.\n")
        # The default handler is back, so a second Ctrl-C would end it at once.
        self.assertEqual(result.stdout, "True\n")

    def test_a_stopped_run_has_the_status_of_its_cause(self):
        result = self._run("--depth=6")
        self.assertEqual(result.returncode, 130)
        self.assertEndsWith(result.stderr, "Stopped.\n")

    @parameterized.parameters("--help", "-h", "-?")
    def test_help_succeeds_without_required_flags(self, flag):
        result = self._run(flag)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertStartsWith(result.stdout, "Does one thing.\n\n")
        self.assertIn("--depth=INTEGER (required)", result.stdout)

    @parameterized.parameters("--helpshort", "--helpfull", "--helpxml")
    def test_long_forms_of_help_stay_those_of_absl(self, flag):
        result = self._run(flag)
        self.assertIn("Does one thing.", result.stdout)
        self.assertIn("How deep to dig.", result.stdout)
        self.assertNotIn("(required)", result.stdout)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ReadingConfig:
    input_file: str = option("", "-", reads="files")
    output_file: str = option("", "-")


class StdinTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ('{"text": "a"}\n', ".jsonl"),
        ("id,text\n1,a\n", ".csv"),
        ("id\tbody\n1\ta\n", ".tsv"),
        ("text\na\n", ".csv"),
        ("Yes, a text\n", ".txt"),
    )
    def test_is_a_file_with_the_ending_of_its_format(self, text, ending):
        stdin = mock.Mock(buffer=io.BytesIO(text.encode()))
        with (
            mock.patch("sys.stdin", stdin),
            paths.reading_stdin(_ReadingConfig()) as config,
        ):
            self.assertEndsWith(config.input_file, ending)
            self.assertEqual(files.read_bytes(config.input_file).decode(), text)
            self.assertEqual(config.output_file, "-")
        self.assertFalse(os.path.exists(config.input_file))


_COMMANDS = sorted(
    path.stem
    for path in pathlib.Path(commands.__file__).parent.glob("*.py")
    if path.stem != "__init__"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _HelpConfig:
    """A configuration with flags of several subjects, in mixed order."""

    old: bool = option("Old.", False, group=IGNORED)
    zone: str | None = option("Zone.", group="hardware")
    rate: float = option("Rate.", 0.5, group="training")
    steps: int = option("Steps.", 7, group="training")
    file: str = option("Required file.", REQUIRED, group="data")
    kind: str = option(
        "word " * 30, "small", group="training", choices=("small", "large")
    )


class HelpTest(tf.test.TestCase, parameterized.TestCase):
    def test_groups_flags_by_subject(self):
        text = cli.help_text(
            _HelpConfig,
            "Trains.\n\n  python run/predict.py --nosteps --file=a\n",
        )
        words = ("word " * 15).strip()
        expected = f"""\
            Trains.

              python run/predict.py --nosteps --file=a

            Data:
              --file=TEXT (required)
                  Required file.

            Training:
              --steps=INTEGER (default: 7)
                  Steps.
              --rate=NUMBER (default: 0.5)
                  Rate.
              --kind={{small, large}} (default: small)
                  {words}
                  {words}

            Hardware:
              --zone=TEXT
                  Zone.

            Accepted for compatibility, ignored:
              --[no]old (default: false)

            """
        self.assertStartsWith(text, textwrap.dedent(expected))

    def test_unknown_subject_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "'colors'"):
            option("Text.", 1, group="colors")

    @parameterized.parameters(*_COMMANDS)
    def test_shows_every_flag_of_a_script_once(self, name):
        module = importlib.import_module(f"bert_tf.commands.{name}")
        config_cls = typing.get_type_hints(module.main)["config"]
        text = cli.help_text(config_cls, module.__doc__)
        description = module.__doc__.strip() + "\n\n"
        self.assertStartsWith(text, description)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        text = text.removeprefix(description)
        shown = re.findall(r"(?m)^  --(?:\[no\])?(\w+)", text)
        fields = dataclasses.fields(config_cls)
        self.assertCountEqual(
            shown, [field.metadata["name"] or field.name for field in fields]
        )
        headings = [x.lower() for x in re.findall(r"(?m)^(\w.*):\n  --", text)]
        groups = {field.metadata["group"] for field in fields}
        self.assertEqual(headings, [x for x in GROUPS if x in groups])
        self.assertNotIn("other", headings)


_ROOT = pathlib.Path(__file__).resolve().parents[2]
# Other files lack flags that pretraining needs, so they do not parse alone.
_RECIPES = sorted(
    path.name
    for path in _ROOT.glob("*.flags")
    if not path.name.startswith(("cpu", "modern"))
)


class FlagFilesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir()
        self.enter_context(contextlib.chdir(self.folder.full_path))

    @parameterized.parameters(*_RECIPES)
    def test_recipes_are_the_same_in_every_folder(self, name):
        word = f"--flagfile={name}"
        elsewhere = flag_files.expand([word])
        of_the_clone = flag_files.expand([f"--flagfile={_ROOT / name}"])
        with contextlib.chdir(_ROOT):
            at_the_root = flag_files.expand([word])
            values = flags.FlagValues()
            read_config = cli.define_flags(PretrainConfig, values)
            values(["pretrain.py", word])
            by_absl = read_config()
        self.assertEqual(elsewhere, at_the_root)
        self.assertEqual(of_the_clone, at_the_root)
        self.assertGreater(len(elsewhere), 10)
        values = flags.FlagValues()
        read_config = cli.define_flags(PretrainConfig, values)
        values(["pretrain.py", *elsewhere])
        self.assertEqual(read_config(), by_absl)
        files.read_bert_config(by_absl.bert_config_file)

    def test_file_of_the_current_folder_wins(self):
        self.folder.create_file("base.flags", "--train_batch_size=7\n")
        self.assertEqual(
            flag_files.expand(["--flagfile=base.flags"]),
            ["--train_batch_size=7"],
        )

    def test_nested_file_is_found_beside_the_file_that_names_it(self):
        self.folder.create_file("a/one.flags", "# x\n\n--a=1\n--flagfile=b/two")
        self.folder.create_file("a/b/two", "// x\n  --b=2 3  \n--flagfile=c")
        self.folder.create_file("a/b/c", "--c\n")
        self.folder.create_file("a/c", "--wrong\n")
        path = os.path.join("a", "one.flags")
        for words in (["--flagfile", path], [f"-flagfile={path}"]):
            self.assertEqual(
                flag_files.expand(["--z", *words, "--a=4"]),
                ["--z", "--a=1", "--b=2 3", "--c", "--a=4"],
            )

    def test_expands_home_and_skips_empty_flagfiles(self):
        self.folder.create_file("mine.flags", "\ufeff--a=1\n")
        home = {"HOME": self.folder.full_path}
        with mock.patch.dict(os.environ, home), contextlib.chdir("/"):
            words = ["--flagfile=", "--flagfile=~/mine.flags", "--flagfile"]
            self.assertEqual(flag_files.expand(words), ["--a=1"])

    def test_words_after_two_dashes_are_no_flags(self):
        words = ["--a=1", "--", "--flagfile=none"]
        self.assertEqual(flag_files.expand(words), words)

    def test_refuses_files_that_hold_no_flags(self):
        self.folder.create_file("a.flags", "--flagfile=a.flags\n")
        self.folder.create_file("latin.csv", b"\xe9", mode="wb")
        self.folder.create_file("text.md", "# Title\n\n--a=1\nA text.\n")
        for name, message in (
            ("a.flags", ": .* includes itself"),
            ("b.flags", ": no such file. .* base.flags, base_phase2"),
            ("latin.csv", ": not a text in UTF-8"),
            ("text.md", ": expected --flag=value .* Received: 'A text.'"),
        ):
            with self.assertRaisesRegex(UserError, name + message):
                flag_files.expand([f"--flagfile={name}"])


class ForCardTest(tf.test.TestCase):
    def test_has_what_shapes_the_weights(self):
        config = PretrainConfig(
            bert_config_file="/films/x.json",
            input_file="data/a,../b",
            output_dir="out",
            cache_dir="cache",
            offline=True,
            do_train=True,
            learning_rate=1e-4,
            train_batch_size=32,
            remat=True,
            num_gpus=2,
        )
        self.assertEqual(
            options.for_card(config, num_warmup_steps=7, seed=12345),
            {
                "bert_config_file": "x.json",
                "input_file": "a,b",
                "learning_rate": 1e-4,
                "num_warmup_steps": 7,
            },
        )

    def test_names_are_those_of_the_flags(self):
        config = ConvertCheckpointConfig(
            target_format="tf1", input="a", output="b", offline=True
        )
        self.assertEqual(options.for_card(config), {"to": "tf1", "input": "a"})


@dataclasses.dataclass(frozen=True)
class _Flags(options.Flags):
    share: float | None = options.data("x", **options.SHARE)
    above: float = options.data("x", 1.0, above=0, below=8)
    kind: str = options.data("x", "a")
    of_b: int = options.data("x", 0, needs=("kind=b", "on"))
    on: bool = options.data("x", False, not_with="kind=c")
    off: bool = options.data("x", True, needs="share")


class RulesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ({"share": 1.0}, None),
        ({"share": 1.1}, "--share must be at least 0 and at most 1.*: 1.1"),
        ({"share": math.nan}, "--share must be .*nan"),
        ({"above": 0.0}, "--above must be above 0 and below 8.*: 0.0"),
        ({"of_b": 2}, "--of_b needs --kind=b or --on.*--of_b=2.*drop"),
        ({"of_b": 2, "kind": "B"}, None),
        ({"of_b": -1, "kind": "b"}, "--of_b must be at least 0.*: -1"),
        ({"on": True, "kind": "c"}, "--on cannot be used with --kind=c.*drop"),
        ({"off": False}, "--nooff needs --share"),
        ({"off": False, "share": 0.5}, None),
    )
    def test_flags_are_checked_where_they_are_declared(self, flags, message):
        if message is None:
            _Flags(**flags)
            return
        with self.assertRaisesRegex(UserError, message):
            _Flags(**flags)

    def test_unknown_rules_are_refused(self):
        with self.assertRaisesRegex(ValueError, "atleast"):
            options.data("x", 1, atleast=1)


if __name__ == "__main__":
    tf.test.main()
