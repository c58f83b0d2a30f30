"""Runs Apache Beam pipelines, and raises the errors of their steps.

Beam reports an exception of a step late, after many retries, within tracebacks,
or not at all. So a step writes each `UserError` into a folder, and the launcher
reads this folder.
"""

import dataclasses
import hashlib
import logging as py_logging
import os
import shlex
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import tensorflow as tf
from absl import logging
from apache_beam.options import pipeline_options
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability import fn_api_runner
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.portability.portable_runner import JobServiceHandle

from bert_tf import errors
from bert_tf.errors import UserError
from bert_tf.flags.groups import BeamConfig
from bert_tf.io import files

_PROBLEMS = "problems"
_DEFAULT_OPTIONS = ("--default_sdk_harness_log_level=WARNING",)


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class Step(beam.DoFn):
    """A pipeline step: calls a function, and stores its `UserError`.

    Attributes:
      work_dir: A folder that all workers and the launcher share.
      function: Returns the inputs of the next step, or None for no inputs.
    """

    work_dir: str
    function: Callable[[Any], Iterable[Any] | None] | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def work(self, element: Any) -> Iterable[Any]:
        """Returns the results of an element."""
        return self.function(element) or ()

    def process(self, element: Any) -> Iterator[Any]:
        """Runs `work` and stores its `UserError` for the launcher."""
        try:
            with errors.extras(), errors.full_disks():
                yield from self.work(element)
        except UserError as error:
            name = hashlib.sha256(str(error).encode()).hexdigest()[:16]
            path = os.path.join(self.work_dir, _PROBLEMS, f"{name}.json")
            files.write_json(path, str(error))


def run(
    config: BeamConfig,
    work_dir: str,
    what: str,
    elements: Iterable[Any],
    *steps: Step | Callable[[Any], Iterable[Any] | None],
) -> None:
    """Runs steps one after another on workers until all elements are done.

    Args:
      config: The flags, which name the runner and its options.
      work_dir: A folder that all workers and the launcher share.
      what: A description of the pipeline for the log.
      elements: The inputs of the first step.
      *steps: Each a `Step`, or a function that the workers can import.

    Raises:
      UserError: If an option is unknown or missing; or the alphabetically first
        `UserError` of the steps.
    """
    options = _options(config)
    problems = os.path.join(work_dir, _PROBLEMS)
    files.remove(problems)
    logging.info("%s, with %s.", what, config.runner)
    runner: Any = config.runner
    if runner == "DirectRunner":
        # Given only the name, Beam would try to download another runner, which
        # supports no --direct_ option.
        runner = fn_api_runner.FnApiRunner(
            provision_info=fn_runner.ExtendedProvisionInfo(
                beam_provision_api_pb2.ProvisionInfo(
                    pipeline_options=JobServiceHandle.encode_pipeline_options(
                        options.get_all_options()
                    )
                )
            )
        )
        # Hide INFO messages about starting and stopping local processes.
        py_logging.getLogger("apache_beam").setLevel(py_logging.WARNING)
    try:
        pipeline = beam.Pipeline(runner, options)
    except (ImportError, ValueError) as error:
        # Show Beam's message, because it names the missing package or option.
        text = "; ".join(str(error).splitlines())
        raise UserError(f"{config.runner} cannot be used: {text}") from error
    with pipeline:
        collection = pipeline | beam.Create([*elements])
        for number, step in enumerate(steps):
            if not isinstance(step, Step):
                step = Step(work_dir=work_dir, function=step)
            # Reshuffle, otherwise one worker would run all steps on an element.
            collection |= f"spread {number}" >> beam.Reshuffle()
            collection |= f"step {number}" >> beam.ParDo(step)
    paths = tf.io.gfile.glob(os.path.join(problems, "*.json"))
    if paths:
        raise UserError(min(map(files.read_json, paths)))


def on_one_machine(config: BeamConfig, work_dir: str) -> bool:
    """Returns True if all workers can access the launcher's disk."""
    return config.runner == "DirectRunner" and "://" not in work_dir


def _options(config: BeamConfig) -> pipeline_options.PipelineOptions:
    try:
        words = shlex.split(config.beam_options)
    except ValueError as error:
        raise UserError(
            "--beam_options must be written as for a shell. Received: "
            f"{config.beam_options!r} ({error})."
        ) from error
    options = pipeline_options.PipelineOptions([*_DEFAULT_OPTIONS, *words])
    # Only check DirectRunner's options: a job server may accept others.
    if config.runner == "DirectRunner":
        given = options.get_all_options(retain_unknown_options=True)
        unknown = sorted(given.keys() - options.get_all_options().keys())
        if unknown:
            raise UserError(
                "--beam_options has options that Apache Beam does not know: "
                f"{', '.join(unknown)}. Received: {config.beam_options!r}."
            )
    return options
