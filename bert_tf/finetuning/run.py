"""Runs fine-tuning: trains, scores dev, predicts test and writes the model.

A single trial writes directly to --output_dir. Several trials, as in section
A.3 of the paper, write to runs/<name>/, and the best trial on dev is copied to
--output_dir.
"""

import dataclasses
import gc
import os
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

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
from bert_tf.finetuning.grid_search import FinishedTrial
from bert_tf.finetuning.trial import Trial
from bert_tf.flags import cli
from bert_tf.flags import options
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import train_log
from bert_tf.tasks import confidence
from bert_tf.tasks import dev_split
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_files import DEV
from bert_tf.tasks.task_files import TEST
from bert_tf.tasks.task_files import TRAIN
from bert_tf.training import output as training_output
from bert_tf.training import preemption as preemptions
from bert_tf.training.preemption import Preemption

# Builds a task from the flags and the model's task.json (None with --do_train).
BuildTask = Callable[[Any, Mapping[str, Any] | None], Task]

# Below this number of texts per label, `--few_shot` is usually better.
_FEW = 50
# These commands are printed after training; {} is the path of the model.
_NEXT_COMMANDS = (
    "python run/predict.py --model_dir={} --input_file=FILE --output_file=FILE",
    "python run/serve.py --model_base_path={}",
    "python export/savedmodel.py --model_dir={} --output_dir=DIRECTORY",
)


def run(config: FinetuneConfig, build_task: BuildTask) -> dict[str, Metrics]:
    """Prepares devices and runs all trials; returns the metrics by split."""
    with preemptions.prepare(config) as place:
        return run_on(config, build_task, *place)


def run_on(
    config: FinetuneConfig,
    build_task: BuildTask,
    devices: Devices,
    preemption: Preemption,
) -> dict[str, Metrics]:
    """Reads model and data, and runs all trials on prepared devices."""
    stored = pretrained_models.read(config)
    task = build_task(config, None if config.do_train else stored.task)
    return run_experiment(
        experiments.prepare(config, task, stored, devices, preemption)
    )


def run_experiment(experiment: Experiment) -> dict[str, Metrics]:
    """Runs all trials, or evaluates the stored model, and reports.

    Every worker computes the same results; only the chief writes files.

    Raises:
      Preempted: On SIGTERM or Ctrl-C; checkpoints are kept.
      UserError: For errors that the user can fix.
    """
    config, coordinator = experiment.config, experiment.coordinator
    folder = config.output_dir
    if config.do_train:
        training_output.start_over(config, coordinator)
    if coordinator.is_chief:
        train_log.open_in(folder)
    if not config.do_train:
        return _evaluate_stored_model(experiment)
    each = experiment.trials()
    if len(each) == 1:
        results = _run_trial(each[0])
    else:
        results = _run_trials(experiment, each)
    if coordinator.is_chief:
        notes = {"Advice:": _advise(config, experiment.task)}
        training_output.print_report(folder, results, _NEXT_COMMANDS, notes)
    return results


def _advise(config: FinetuneConfig, task: Task) -> str:
    """Returns advice for classifiers with few texts per label, else ""."""
    is_plain = getattr(config, "few_shot", None) is False
    if not is_plain or task.problem_type != "single_label":
        return ""
    each = len(task.data[TRAIN].examples) / len(task.labels)
    if each >= _FEW:
        return ""
    return (
        f"{each:.3g} texts of each label are few: --few_shot, from a model "
        "that embeds sentences such as hf://sentence-transformers/"
        "all-MiniLM-L6-v2, is usually more accurate; compare both on dev."
    )


# === Trials ===


def _run_trials(
    experiment: Experiment, each: Sequence[Experiment]
) -> dict[str, Metrics]:
    """Runs all trials that have not finished, and keeps the best one.

    A finished trial is not trained again; it is evaluated again if a dev or
    test set is new. If a value in a trial is not finite, a rerun would fail,
    too, so the trial is recorded as failed and the next one starts. All workers
    run each trial together; the chief records the results.
    """
    kinds = experiment.config.requested_splits().keys() - {TRAIN}
    requested = experiment.data_hashes(*kinds)
    # Read the records of all trials now, to report changed settings early.
    finished = [grid_search.read(x) for x in each]
    for index, (trial, own) in enumerate(zip(finished, each, strict=True)):
        work, state = None, " is done"
        if trial is None:
            work, state = _run_trial, ""
        elif trial.failure is not None:
            state = " has failed before"
        elif not requested.items() <= trial.evaluated.items():
            work = _evaluate_finished_trial
            state = " is done and is evaluated again"
        logging.info(
            "Trial %d of %d%s: %s.",
            index + 1,
            len(each),
            state,
            own.trial.name,
        )
        if work is not None:
            finished[index] = _do_and_record(own, work, requested)
            gc.collect()  # Frees models, which reference cycles keep alive.
    return grid_search.keep_best(experiment, finished)


def _do_and_record(
    experiment: Experiment,
    work: Callable[[Experiment], Mapping[str, Metrics]],
    requested: Mapping[str, str],
) -> FinishedTrial:
    failure = None
    try:
        results = dict(work(experiment))
    except NotFiniteError as error:
        if work is not _run_trial:
            raise
        # All workers compute equal numbers, so all catch `NotFiniteError`.
        failure, results = str(error), {}
        logging.error(
            "The trial %s has failed: %s", experiment.trial.name, failure
        )
    # All workers use the chief's metrics, so they select the same best trial.
    results, failure = experiment.coordinator.from_chief([results, failure])
    evaluated = requested if failure is None else {}
    trial = FinishedTrial(
        experiment.trial, experiment.output_dir, results, evaluated, failure
    )
    if experiment.coordinator.is_chief:
        grid_search.write(trial, experiment.identity)
    return trial


def _run_trial(experiment: Experiment) -> dict[str, Metrics]:
    """Trains, evaluates and predicts, and writes the results and the model."""
    task, coordinator = experiment.task, experiment.coordinator
    output_dir = experiment.output_dir
    tf.io.gfile.makedirs(output_dir)
    trial = Trial(experiment)
    trial.restore_or_initialize()
    config = experiment.config
    if config.dev_fraction and coordinator.is_chief:
        dev_split.write(task, config.train_file)
    first_step = trial.step
    try:
        trial.train()
        step, before, stored_task = trial.chosen_step, {}, {}
        is_trained = trial.step == first_step and coordinator.is_chief
        if is_trained:
            stored_task = training_output.read_task(output_dir, step)
            if stored_task:  # Keep the scores of splits not evaluated again.
                before = task_evaluation.read_results(output_dir, step)
        # Send the chief's task.json, so that all workers use one threshold.
        stored_task = coordinator.from_chief(stored_task)
        if not config.do_eval:  # Otherwise dev selects the threshold again.
            task = task.with_threshold(stored_task)
            task = experiment.objective_source.tune(task)
        task, results = _evaluate_splits(
            experiment, trial.evaluator, task, step, before
        )
        evaluations = trial.evaluations
        scored = [split for split in results if split.startswith(DEV)]
        if scored and not experiment.config.selects_evaluation:
            final = results[scored[0]]
            trial.write_summaries("eval", final)
            if evaluations:  # Draw only metrics that all evaluations have.
                final = {x: y for x, y in final.items() if x in evaluations[0]}
            evaluations = [*evaluations, {"global_step": trial.step} | final]
        if coordinator.is_chief:
            results_of_model = stored_task.get("results", {}) | results
            _write_model(
                experiment, task, trial.weights(), step, results_of_model
            )
            training_output.draw_learning_curves(
                output_dir,
                evaluations,
                None,
                f"Fine-tuning for {_subject(task)}",
            )
        return results
    finally:
        trial.release()  # Frees memory for the next trial.


def _evaluate_splits(
    experiment: Experiment,
    evaluator: Evaluator,
    task: Task,
    step: int,
    before: Mapping[str, Metrics],
) -> tuple[Task, dict[str, Metrics]]:
    """Scores dev and predicts test as requested; only the chief writes files.

    Files have the model's `step` and, for splits that are not evaluated now,
    the results `before`. Returns the task with the threshold selected on dev,
    and the metrics by split.
    """
    config, output_dir = experiment.config, experiment.output_dir
    is_chief = experiment.coordinator.is_chief
    dev = task.splits(DEV) if config.do_eval else ()
    test = task.splits(TEST) if config.do_predict else ()
    results = {}
    for split in (*dev, *test):
        # As in the paper, the first dev set selects the threshold. Without a
        # dev set, `task` keeps its threshold.
        evaluated = evaluator.evaluate(split, task, split in dev[:1])
        task = evaluated.task
        if evaluated.metrics:
            compared = experiment.objective_source.compare(split)
            results[split] = evaluated.metrics | compared
        if is_chief:
            task_evaluation.write_predictions(output_dir, evaluated)
    if results and is_chief:
        task_evaluation.write_results(output_dir, step, {**before, **results})
    return task, results


# === Stored models ===


def _evaluate_finished_trial(experiment: Experiment) -> dict[str, Metrics]:
    """Evaluates a finished trial again, as a dev or test set is new."""
    stored = model_directory.read_model(
        os.path.join(experiment.output_dir, model_directory.MODEL_FOLDER)
    )
    task, before, results = _evaluate_model(experiment, stored)
    if experiment.coordinator.is_chief:
        step, weights = _step_of(stored), dict(stored.weights)
        _write_model(experiment, task, weights, step, before | results)
    return results


def _evaluate_stored_model(experiment: Experiment) -> dict[str, Metrics]:
    """Evaluates and predicts with the model that the experiment starts from."""
    task, stored = experiment.task, experiment.stored
    output_dir = experiment.output_dir
    # Only a model in --output_dir may be changed, never --pretrained_model_dir.
    is_own = not experiment.config.pretrained_model_dir and stored.path == (
        os.path.join(output_dir, model_directory.MODEL_FOLDER)
    )
    tuned, _, results = _evaluate_model(experiment, stored, is_own)
    # Compare `FIELDS` with task.json, as flags may have changed them in `task`.
    chosen = {name: stored.task.get(name) for name in confidence.FIELDS}
    old, new = task.to_json() | chosen, tuned.to_json()
    changes = {name: x for name, x in new.items() if x != old.get(name)}
    if not changes or not experiment.coordinator.is_chief:
        return results
    if is_own:
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
    else:
        logging.warning(
            "What was selected on dev is not stored in %s, which is "
            "outside --output_dir.",
            stored.path,
        )
    return results


def _evaluate_model(
    experiment: Experiment, stored: StoredModel, is_own: bool = True
) -> tuple[Task, dict[str, Metrics], dict[str, Metrics]]:
    """Returns the task, the earlier and the new results of a stored model.

    Earlier results are read only if `is_own`: the model is in `output_dir`.
    """
    model = pretrained_models.build_model(
        stored, experiment.task, experiment.devices, keep_head=True
    )
    step, before = _step_of(stored), {}
    if is_own:
        written = task_evaluation.read_results(experiment.output_dir, step)
        before = stored.task.get("results", {}) | written
    evaluator = Evaluator(
        model, experiment.reader, experiment.config, experiment.devices
    )
    task = experiment.task
    if not experiment.config.do_eval:  # Otherwise dev selects the threshold.
        task = task.with_threshold(stored.task)
    task, results = _evaluate_splits(experiment, evaluator, task, step, before)
    return task, before, results


def _step_of(stored: StoredModel) -> int:
    return int(stored.task.get("global_step", 0))


# === Model directories ===


def _write_model(
    experiment: Experiment,
    task: Task,
    weights: Mapping[str, np.ndarray],
    step: int,
    results: Mapping[str, Metrics],
) -> None:
    stored = experiment.stored
    task_json = {"kind": task.kind} | task.to_json()
    task_json |= {"global_step": step, "results": dict(results)}
    card = model_directory.build_card(
        f"A BERT for {_subject(task)}",
        f"A BERT fine-tuned for {step} steps with bert_tf, from "
        f"{paths.base_names(stored.source)}.",
        {
            "Data": {k: paths.base_names(x) for k, x in task.files.items()},
            "Flags (others: default, or no effect)": options.for_card(
                experiment.config, **dataclasses.asdict(experiment.trial)
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
        model_directory.card_header(task_json, stored.source, task.files),
    )
    training_output.write_model_directory(
        experiment.output_dir,
        stored.config,
        weights,
        stored.vocabulary,
        stored.tokenizer_settings,
        task_json,
        card,
    )


def _subject(task: Task) -> str:
    """Returns the task's name; for custom tasks the training file's name."""
    if task.name != "custom" or not task.files:
        return task.name
    path = task.files.get(TRAIN) or next(iter(task.files.values()))
    return os.path.basename(path)
