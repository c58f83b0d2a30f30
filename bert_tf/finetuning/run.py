"""Runs fine-tuning: trains, scores dev, predicts test and writes the model.

A single trial writes directly to --output_dir. Several trials, as in section
A.3 of the paper, write to runs/<name>/, and the best of them on dev is copied
to --output_dir.
"""

import dataclasses
import functools
import os
import shlex
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import keras_backend
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.distribute.devices import Devices
from bert_tf.errors import NotFiniteError
from bert_tf.finetuning import evaluate as task_evaluation
from bert_tf.finetuning import experiment as experiments
from bert_tf.finetuning import grid_search
from bert_tf.finetuning import pretrained_model as pretrained_models
from bert_tf.finetuning.evaluate import Evaluator
from bert_tf.finetuning.evaluate import Metrics
from bert_tf.finetuning.experiment import Experiment
from bert_tf.finetuning.trial import Trial
from bert_tf.flags import cli
from bert_tf.flags import options
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.flags.finetune import TrialConfig
from bert_tf.io import files
from bert_tf.io import train_log
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_files import DEV
from bert_tf.tasks.task_files import TEST
from bert_tf.tasks.task_files import TRAIN
from bert_tf.training import output as training_output
from bert_tf.training import preemption as preemptions
from bert_tf.training.preemption import Preemption

# Builds the task from the flags and, without --do_train, the model's task.json.
BuildTask = Callable[[Any, Mapping[str, Any] | None], Task]


def run(config: FinetuneConfig, build_task: BuildTask) -> dict[str, Metrics]:
    """Runs fine-tuning.

    Every worker computes the same results; only the chief writes files.

    Returns:
      Split to metrics.

    Raises:
      Preempted: If the process was asked to stop; checkpoints are kept.
      UserError: For errors that the user can fix.
    """
    with preemptions.prepare(config) as (devices, preemption):
        return run_on(devices, preemption, config, build_task)


def run_on(
    devices: Devices,
    preemption: Preemption,
    config: FinetuneConfig,
    build_task: BuildTask,
) -> dict[str, Metrics]:
    """Runs fine-tuning on devices that the caller has prepared."""
    check_setup(config)
    if config.do_train:
        stored = pretrained_models.read(config)
        task = build_task(config, None)
    else:
        stored = pretrained_models.read_for_evaluation(config)
        task = build_task(config, stored.task)
    return run_experiment(
        experiments.prepare(config, task, stored, devices, preemption)
    )


def check_setup(config: FinetuneConfig) -> None:
    """Checks Keras's backend; warns of unused flags."""
    keras_backend.require_tensorflow()
    training_output.warn_of_flags(config, training_output.MEANINGLESS_FLAGS)


def run_experiment(experiment: Experiment) -> dict[str, Metrics]:
    """Runs all trials, or evaluates the stored model, and reports."""
    config = experiment.config
    coordinator = experiment.devices.coordinator
    is_chief = coordinator.is_chief
    if config.do_train:
        training_output.start_over(config, coordinator)
    if is_chief:
        train_log.open_in(config.output_dir)
    results = _run_trials(experiment)
    if is_chief and config.do_train:
        training_output.print_report(
            config.output_dir, results, _next_commands(config.output_dir)
        )
    return results


def _next_commands(output_dir: str) -> list[str]:
    """Returns commands that use the model."""
    model = shlex.quote(os.path.join(output_dir, model_directory.MODEL_FOLDER))
    return [
        f"{cli.program('run/predict.py')} --model_dir={model} "
        "--input_file=FILE --output_file=FILE",
        f"{cli.program('run/serve.py')} --model_base_path={model}",
        f"{cli.program('export/savedmodel.py')} --model_dir={model} "
        "--output_dir=DIRECTORY",
    ]


def _run_trials(experiment: Experiment) -> dict[str, Metrics]:
    """Runs all trials, or evaluates the stored model without --do_train."""
    config = experiment.config
    if not config.do_train:
        return _evaluate_stored_model(experiment)
    trial_configs = config.trials()
    if len(trial_configs) == 1:
        return _run_trial(experiment, trial_configs[0], config.output_dir)
    return grid_search.run_trials(
        experiment,
        trial_configs,
        functools.partial(_run_trial, experiment),
        functools.partial(_evaluate_finished_trial, experiment),
    )


def _run_trial(
    experiment: Experiment, trial_config: TrialConfig, output_dir: str
) -> dict[str, Metrics]:
    """Runs one trial and frees its device memory."""
    experiment = experiment.for_trial(trial_config)
    tf.io.gfile.makedirs(output_dir)
    trial = Trial(experiment, trial_config, output_dir)
    trial.restore_or_initialize()
    try:
        results = _train_and_evaluate(
            trial, experiment, trial_config, output_dir
        )
    except NotFiniteError:
        trial.release()  # Other trials may follow.
        raise
    trial.release()
    return results


def _train_and_evaluate(
    trial: Trial,
    experiment: Experiment,
    trial_config: TrialConfig,
    output_dir: str,
) -> dict[str, Metrics]:
    """Trains, evaluates and predicts, then writes the results."""
    task = experiment.task
    first_step = trial.step
    trial.train()
    coordinator = experiment.devices.coordinator
    is_chief = coordinator.is_chief
    stored_results, stored_task = {}, {}
    if (
        is_chief
        and trial.step == first_step
        and training_output.model_is_written(output_dir, trial.chosen_step)
    ):
        # Already trained: keep the scores of splits not evaluated again.
        stored_results = task_evaluation.read_results(
            output_dir, trial.chosen_step
        )
        stored_task = _read_model(output_dir).task
    # All workers predict with the same threshold.
    stored_task = coordinator.from_chief(stored_task)
    if not task.splits(DEV):  # Otherwise dev selects the threshold again.
        task = task.with_threshold(stored_task)
    task, results = _evaluate(
        experiment,
        task,
        trial.evaluator,
        trial.chosen_step,
        output_dir,
        stored_results,
    )
    evaluations = trial.evaluations
    scored = [split for split in results if split.startswith(DEV)]
    if scored and not experiment.config.selects_evaluation:
        final = results[scored[0]]
        trial.write_summaries("eval", final)
        if evaluations:  # They lack what is compared at the end only.
            final = {
                name: final[name] for name in final if name in evaluations[0]
            }
        evaluations = [*evaluations, {"global_step": trial.step} | final]
    if is_chief:
        training_output.draw_learning_curves(
            output_dir,
            evaluations,
            None,
            f"Fine-tuning for {_subject(task)}",
        )
        _write_model(
            experiment,
            trial_config,
            task,
            trial.weights(),
            trial.chosen_step,
            stored_task.get("results", {}) | results,
            output_dir,
        )
    return results


def _evaluate_finished_trial(
    experiment: Experiment, trial_config: TrialConfig, output_dir: str
) -> dict[str, Metrics]:
    """Evaluates a finished trial on splits that it was not evaluated on."""
    experiment = experiment.for_trial(trial_config)
    stored = _read_model(output_dir)
    model = pretrained_models.build_model(
        stored, experiment.task, experiment.devices, keep_head=True
    )
    step = int(stored.task["global_step"])
    stored_results = stored.task.get("results", {})
    task, results = _evaluate(
        experiment,
        experiment.task,
        functools.partial(experiment.build_evaluator, model),
        step,
        output_dir,
        stored_results,
    )
    if experiment.devices.coordinator.is_chief:
        _write_model(
            experiment,
            trial_config,
            task,
            dict(stored.weights),
            step,
            stored_results | results,
            output_dir,
        )
    return results


def _evaluate_stored_model(experiment: Experiment) -> dict[str, Metrics]:
    """Evaluates and predicts with the model that the experiment starts from."""
    config, task = experiment.config, experiment.task
    stored, output_dir = experiment.stored, config.output_dir
    is_own = pretrained_models.has_trained_model(config)
    step = int(stored.task.get("global_step", 0))
    stored_results: Mapping[str, Metrics] = {}
    if is_own:
        # Keep the scores of splits that are not evaluated again.
        stored_results = stored.task.get(
            "results", {}
        ) | task_evaluation.read_results(output_dir, step)
    model = pretrained_models.build_model(
        stored, task, experiment.devices, keep_head=True
    )
    tuned, results = _evaluate(
        experiment,
        task,
        functools.partial(experiment.build_evaluator, model),
        step,
        output_dir,
        stored_results,
    )
    if tuned != task and experiment.devices.coordinator.is_chief:
        if is_own:
            _rewrite_task(stored, task, tuned, output_dir)
        else:
            logging.warning(
                "The threshold selected on dev is not stored in %s, which is "
                "outside --output_dir.",
                stored.path,
            )
    return results


def _evaluate(
    experiment: Experiment,
    task: Task,
    build_evaluator: Callable[[int], Evaluator],
    global_step: int,
    output_dir: str,
    stored_results: Mapping[str, Metrics],
) -> tuple[Task, dict[str, Metrics]]:
    """Scores dev and predicts test as the flags request; the chief writes.

    Returns:
      The task with the threshold selected on dev, and split to metrics.
    """
    config = experiment.config
    is_chief = experiment.devices.coordinator.is_chief
    results = {}
    for is_requested, kind, batch_size in (
        (config.do_eval, DEV, config.eval_batch_size),
        (config.do_predict, TEST, config.predict_batch_size),
    ):
        if not is_requested:
            continue
        evaluator = build_evaluator(batch_size)
        for number, split in enumerate(task.splits(kind)):
            # The first of several dev sets selects the threshold, as in the
            # paper. Choices made while the model was trained stay.
            select_threshold = kind == DEV and number == 0
            evaluated = evaluator.evaluate(split, task, select_threshold)
            task = evaluated.task
            if evaluated.metrics:
                reference = experiment.objective_source.compare(split)
                results[split] = evaluated.metrics | reference
            if is_chief:
                with training_output.writing("The predictions", output_dir):
                    task_evaluation.write_predictions(output_dir, evaluated)
    if results and is_chief:
        with training_output.writing("The results", output_dir):
            task_evaluation.write_results(
                output_dir, global_step, dict(stored_results) | results
            )
    return task, results


def _read_model(output_dir: str) -> StoredModel:
    """Returns the model of a finished trial."""
    return formats.read(os.path.join(output_dir, model_directory.MODEL_FOLDER))


def _write_model(
    experiment: Experiment,
    trial_config: TrialConfig,
    task: Task,
    weights: Mapping[str, np.ndarray],
    step: int,
    results: Mapping[str, Metrics],
    output_dir: str,
) -> None:
    """Writes the model directory of a trial."""
    stored = experiment.stored
    task_json = {"kind": task.kind} | task.to_json()
    task_json |= {"global_step": step, "results": dict(results)}
    card = model_directory.build_card(
        f"A BERT for {_subject(task)}",
        f"A BERT fine-tuned for {step} steps with bert_tf, from "
        f"{stored.source}.",
        {
            "Data": dict(task.files),
            "Flags (others: default, or no effect)": options.for_card(
                experiment.config, **dataclasses.asdict(trial_config)
            ),
            "Metrics": {
                f"{split} {name}": value
                for split, metrics in results.items()
                for name, value in metrics.items()
            },
        }
        | dict(experiment.objective_source.card),
        f"{cli.program('run/predict.py')} --model_dir=. --input_file=... "
        "--output_file=...",
    )
    training_output.write_model_directory(
        output_dir,
        stored.config,
        weights,
        stored.vocabulary,
        stored.tokenizer_settings,
        task_json,
        card,
    )


def _subject(task: Task) -> str:
    """Returns the name of a task, or of the file of one's own data."""
    if task.name != "custom" or not task.files:
        return task.name
    path = task.files.get(TRAIN) or next(iter(task.files.values()))
    return os.path.basename(path)


def _rewrite_task(
    stored: StoredModel, task: Task, tuned: Task, output_dir: str
) -> None:
    """Rewrites the model of `output_dir` with the selected threshold."""
    before, now = task.to_json(), tuned.to_json()
    changes = {name: x for name, x in now.items() if x != before[name]}
    card = os.path.join(stored.path, model_directory.README_FILE)
    training_output.write_model_directory(
        output_dir,
        stored.config,
        dict(stored.weights),
        stored.vocabulary,
        stored.tokenizer_settings,
        {**stored.task, **changes},
        files.read_bytes(card).decode(),
    )
    logging.info("The model's task.json now has %s.", changes)
