"""Turns a script's configuration into absl flags, and prints `--help`.

Scripts import their code inside `main`, so that `--help` and flag errors print
at once instead of after TensorFlow's import.
"""

import dataclasses
import itertools
import re
import shlex
import sys
import textwrap
import types
import typing
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import app
from absl import flags
from absl import logging

import bert_tf
from bert_tf import errors
from bert_tf import keras_backend
from bert_tf.config import GROUPS
from bert_tf.config import IGNORED
from bert_tf.errors import Preempted
from bert_tf.errors import UserError
from bert_tf.errors import program
from bert_tf.flags import flag_files
from bert_tf.flags.groups import ModelSourceConfig
from bert_tf.io import interrupts
from bert_tf.io import paths
from bert_tf.io import terminal

flags.disclaim_key_flags()  # Otherwise --helpshort omits the script's flags.

_DEFINERS = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}
# Names of values in `--help` and in the reference of flags.
VALUE_NAMES = {int: "INTEGER", float: "NUMBER", str: "TEXT"}
_HELP_WIDTH = 80
_HELP_END = (
    "--flagfile=FILE reads flags from a file, one a line. --helpfull also "
    "prints absl's flags."
)

_VALUE_WORDS = {bool: "true or false", int: "a whole number"}
# Matches absl's error about a wrong value; captures the flag and the value.
_WRONG_VALUE = re.compile(
    r"flag --(\w+)=(.*): "
    r"(?:value should|invalid literal|could not convert|\('Non-boolean)",
    re.DOTALL,
)
# absl's message about a missing required flag has these words.
_IS_MISSING = "must have a value other than None"
_SEE_HELP = "; --help lists the flags."


def value_type(annotation: Any) -> type:
    """Returns the type without None: `int` for `int` and for `int | None`."""
    if isinstance(annotation, types.UnionType):
        (annotation,) = set(typing.get_args(annotation)) - {type(None)}
    return annotation


def flag_name(field: dataclasses.Field) -> str:
    """Returns the name of a field's flag."""
    return field.metadata["name"] or field.name


def define_flags(
    config_cls: type, flag_values: flags.FlagValues = flags.FLAGS
) -> Callable[[], Any]:
    """Defines one flag per field; returns a function that reads the values."""
    annotations = typing.get_type_hints(config_cls)
    fields = {flag_name(x): x for x in dataclasses.fields(config_cls)}
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING
        default = None if required else field.default
        common = {"flag_values": flag_values, "required": required}
        choices = field.metadata["choices"]
        if choices:
            flags.DEFINE_enum(
                name, default, choices, field.metadata["help"], **common
            )
        else:
            define = _DEFINERS[value_type(annotations[field.name])]
            define(name, default, field.metadata["help"], **common)
    return lambda: config_cls(
        **{
            field.name: paths.read_flag(name, field, flag_values[name].value)
            for name, field in fields.items()
        }
    )


def words(values: Mapping[str, Any]) -> list[str]:
    """Returns the words of a command line that set flags to these values."""
    return [
        f"--{'' if value else 'no'}{name}"
        if isinstance(value, bool)
        else f"--{name}={value}"
        for name, value in values.items()
        if value is not None
    ]


def parse(config_cls: type, command: Sequence[str]) -> Any:
    """Returns the configuration that the words of a command line describe.

    Raises:
      UserError: If a flag is unknown, wrong or missing, or a word is no flag.
    """
    values = flags.FlagValues()
    read_config = define_flags(config_cls, values)
    _set_flags(["", *command], config_cls, values)
    return read_config()


def _set_flags(
    argv: Sequence[str], config_cls: type, values: flags.FlagValues
) -> list[str]:
    """Sets the flags of a command line; returns the program's name."""
    try:
        rest = values([argv[0], *flag_files.expand(argv[1:])])
    except flags.Error as error:
        raise UserError(_flag_error(error, config_cls, values)) from error
    if len(rest) > 1:
        raise UserError(_stray_word(rest[1], config_cls))
    return rest


def command_line(script: str, config: Any) -> str:
    """Returns the shell command that runs `script` with the flags of `config`.

    Flags at their default are omitted; a value that a shell would split or
    expand is quoted.
    """
    values = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value not in (None, field.default):
            is_bool = isinstance(value, bool)
            quoted = value if is_bool else shlex.quote(str(value))
            values[flag_name(field)] = quoted
    return " ".join([program(script), *words(values)])


def help_text(config_cls: type, description: str) -> str:
    """Returns the text of `--help`: the description, then flags by subject.

    Required flags come first within a subject, then the flags in the examples
    of the description, then all other flags in the order of declaration.
    """
    annotations = typing.get_type_hints(config_cls)
    examples = set(re.findall(r"--(?:no)?(\w+)", description))

    def rank(field: dataclasses.Field) -> int:
        if field.default is dataclasses.MISSING:
            return 0
        return 1 if flag_name(field) in examples else 2

    paragraphs = [errors.name_programs(description.strip())]
    fields = sorted(dataclasses.fields(config_cls), key=rank)
    for group in GROUPS:
        entries = [
            _flag_help(field, value_type(annotations[field.name]))
            for field in fields
            if field.metadata["group"] == group
        ]
        if entries:
            heading = f"{group[0].upper()}{group[1:]}:"
            paragraphs.append("\n".join([heading, *entries]))
    paragraphs.append(textwrap.fill(_HELP_END, _HELP_WIDTH))
    return "\n\n".join(paragraphs) + "\n"


def _flag_help(field: dataclasses.Field, kind: type) -> str:
    """Returns a flag's lines in `--help`: form and default, then the text."""
    name, choices = flag_name(field), field.metadata["choices"]
    if kind is bool:
        form = f"--[no]{name}"
    elif choices:
        form = f"--{name}={{{', '.join(choices)}}}"
    else:
        form = f"--{name}={VALUE_NAMES[kind]}"
    if field.default is dataclasses.MISSING:
        form += " (required)"
    elif isinstance(field.default, bool):
        form += f" (default: {str(field.default).lower()})"
    elif field.default not in (None, ""):
        form += f" (default: {field.default})"
    # Indent a wrapped --flag=VALUE more than the help text, to separate them.
    lines = [("  ", " " * 10, form)]
    if field.metadata["group"] != IGNORED:
        text = errors.name_programs(field.metadata["help"])
        lines.append((" " * 6, " " * 6, text))
    return "\n".join(
        textwrap.fill(
            text,
            _HELP_WIDTH,
            initial_indent=first,
            subsequent_indent=later,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for first, later, text in lines
    )


def run(main: Callable[[Any], None]) -> None:
    """Parses the command line into a configuration and calls `main` with it.

    The type of `main`'s parameter defines the flags, and the docstring of
    `main`'s module is the description in `--help`.

    A `UserError` or a wrong flag prints its message on standard error and exits
    with status 1. `Preempted` logs its message and exits with its status.
    Ctrl-C prints one word and exits with status 130.
    """
    (config_cls,) = (
        annotation
        for name, annotation in typing.get_type_hints(main).items()
        if name != "return"
    )
    read_config = define_flags(config_cls)
    description = sys.modules[main.__module__].__doc__ or ""
    # --helpshort prints `__main__`'s docstring, so put the description there.
    sys.modules["__main__"].__doc__ = description

    def parse_flags(argv: list[str]) -> list[str]:
        words = itertools.takewhile("--".__ne__, argv[1:])
        asked = {x.lstrip("-") for x in words if x.startswith("-")}
        if asked & {"help", "h", "?"}:
            sys.stdout.write(help_text(config_cls, description))
            sys.exit(0)
        # Leave --version to a script that defines this flag itself.
        if "version" in asked and "version" not in flags.FLAGS:
            sys.stdout.write(f"bert_tf {bert_tf.__version__}\n")
            sys.exit(0)
        try:
            return _set_flags(argv, config_cls, flags.FLAGS)
        except UserError as error:
            _end(str(error))

    interrupts.end_at_once()
    interrupt = interrupts.Interrupt()

    def absl_main(argv: list[str]) -> None:
        del argv
        verbosity = flags.FLAGS["verbosity"]
        level = verbosity.value
        if verbosity.using_default_value:
            level = logging.INFO
        if level <= logging.INFO:
            # Drop TensorFlow's messages: they would hide the script's messages.
            terminal.drop_noise()
        terminal.show_log(level)
        try:
            # Check the backend first: Keras's own error in `main` is unclear.
            keras_backend.require_tensorflow()
            config = read_config()
            _warn_of_ignored(config)
            if isinstance(config, ModelSourceConfig):
                config.set_environment()
            with interrupt, errors.extras(), errors.full_disks():
                with paths.reading_stdin(config) as config:
                    paths.check_inputs(config)
                    main(config)
        except UserError as error:
            sys.stdout.flush()
            _end(errors.name_programs(str(error)))
        except Preempted as stop:
            logging.info("%s", stop)
            sys.exit(stop.status)
        except (Exception, KeyboardInterrupt):
            # Ctrl-C during an import can surface as any error.
            if not interrupt.received:
                raise
            sys.stderr.write(interrupt.message)
            sys.exit(errors.INTERRUPTED)

    app.run(absl_main, flags_parser=parse_flags)


def _end(message: str) -> typing.NoReturn:
    sys.exit(terminal.wrap(f"ERROR: {message}"))


def _warn_of_ignored(config: Any) -> None:
    names = ", ".join(
        f"--{flag_name(field)}"
        for field in dataclasses.fields(config)
        if field.metadata["group"] == IGNORED and getattr(config, field.name)
    )
    if names:
        logging.warning(
            "These flags of the original have no effect: %s.", names
        )


def _stray_word(word: str, config_cls: type) -> str:
    """Returns the message for an argument that belongs to no flag."""
    paths_read = [
        flag_name(field)
        for field in dataclasses.fields(config_cls)
        if field.metadata["reads"]
    ]
    advice = "Write --flag=value, with quotes around spaces."
    for name in errors.closest(word.partition(".")[0], paths_read)[:1]:
        advice = f"If it belongs to --{name}, write --{name}={word}."
    if word.partition("=")[0] in map(flag_name, dataclasses.fields(config_cls)):
        advice = f"Write --{word}."
    return f"Received an argument without a flag: {word!r}. {advice}"


def _flag_error(
    error: flags.Error, config_cls: type, values: flags.FlagValues
) -> str:
    """Returns the message for an unknown, wrong or missing flag."""
    text = str(error).splitlines()[0]
    fields = {flag_name(x): x for x in dataclasses.fields(config_cls)}
    if isinstance(error, flags.UnrecognizedFlagError):
        name = error.flagname.removeprefix("no")
        names = [*fields, "flagfile", "help", "verbosity", "version"]
        hint = errors.did_you_mean(name, names, "--{}", _SEE_HELP)
        return f"There is no flag --{error.flagname}{hint}"
    wrong = _WRONG_VALUE.match(str(error))
    if wrong and wrong[1] in fields:
        name, value = wrong.groups()
        choices = fields[name].metadata["choices"] or ()
        annotation = typing.get_type_hints(config_cls)[fields[name].name]
        words = _VALUE_WORDS.get(value_type(annotation), "a number")
        words = f"one of {', '.join(choices)}" if choices else words
        hint = errors.did_you_mean(value, choices)
        return f"--{name} must be {words}. Received: {value!r}{hint}"
    if _IS_MISSING not in text:
        text = re.sub(r"^(flag|ERROR::) ", "", text).replace(" ?", "?")
        return text if text.endswith("?") else text.rstrip(".") + _SEE_HELP
    missing = [
        f"--{name}"
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and values[name].value is None
    ]
    verb = "is" if len(missing) == 1 else "are"
    return f"{' and '.join(missing)} {verb} required{_SEE_HELP}"
