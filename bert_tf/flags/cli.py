"""Turns a run configuration into absl flags, so each default is written once.

Scripts import what they call inside `main`, so that `--help` and a mistyped
flag answer at once instead of after TensorFlow's import.
"""

import dataclasses
import os
import shlex
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from absl import app
from absl import flags
from absl import logging

from bert_tf import keras_backend
from bert_tf.errors import Preempted
from bert_tf.errors import UserError

flags.disclaim_key_flags()  # Lists the flags under the script in --help.

_DEFINERS = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}


def _value_type(annotation: Any) -> type:
    """Returns `int` for `int` and for `int | None`."""
    if isinstance(annotation, types.UnionType):
        (annotation,) = set(typing.get_args(annotation)) - {type(None)}
    return annotation


def define_flags(
    config_cls: type, flag_values: flags.FlagValues = flags.FLAGS
) -> Callable[[], Any]:
    """Defines one flag per field; the returned function reads them back."""
    annotations = typing.get_type_hints(config_cls)
    names = {}
    for field in dataclasses.fields(config_cls):
        name = field.metadata["name"] or field.name
        names[field.name] = name
        required = field.default is dataclasses.MISSING
        default = None if required else field.default
        common = {"flag_values": flag_values, "required": required}
        choices = field.metadata["choices"]
        if choices:
            flags.DEFINE_enum(
                name, default, choices, field.metadata["help"], **common
            )
        else:
            define = _DEFINERS[_value_type(annotations[field.name])]
            define(name, default, field.metadata["help"], **common)
    return lambda: config_cls(
        **{field: flag_values[name].value for field, name in names.items()}
    )


def command_line(script: str, config: Any) -> str:
    """Returns the command that runs `script` with what `config` says.

    Flags at their default are left out; a value that a shell would split or
    expand is quoted.
    """
    words = ["python", script]
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        name = field.metadata["name"] or field.name
        if value is None or value == field.default:
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no{name}")
        else:
            words.append(f"--{name}={shlex.quote(str(value))}")
    return " ".join(words)


def run(main: Callable[[Any], None]) -> None:
    """Parses the command line into a configuration and calls `main` with it.

    The type of `main`'s parameter defines the flags, and the docstring of its
    module is the description in `--help`.

    A `UserError` ends the process with its one sentence on standard error and
    exit status 1; `Preempted` with its sentence in the log and 0.
    """
    (config_cls,) = (
        annotation
        for name, annotation in typing.get_type_hints(main).items()
        if name != "return"
    )
    read_config = define_flags(config_cls)
    # absl shows the docstring of the started file, which is only a door.
    sys.modules["__main__"].__doc__ = sys.modules[main.__module__].__doc__
    # TensorFlow's notes on the machine would drown what the script says.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

    def absl_main(argv: list[str]) -> None:
        if len(argv) > 1:
            raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
        logging.set_verbosity(logging.INFO)
        try:
            # Before `main` imports TensorFlow, which imports Keras.
            keras_backend.require_tensorflow()
            main(read_config())
        except UserError as error:
            sys.stdout.flush()
            sys.exit(f"ERROR: {error}")
        except Preempted as stop:
            logging.info("%s", stop)

    app.run(absl_main)
