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

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.finetuning import evaluate as task_evaluation
from bert_tf.finetuning import grid_search
from bert_tf.finetuning import pretrained_model as pretrained_models
from bert_tf.finetuning.evaluate import Evaluator
from bert_tf.finetuning.evaluate import Metrics
from bert_tf.finetuning.experiment import Experiment
from bert_tf.finetuning.trial import Trial
from bert_tf.flags import cli
from bert_tf.flags import options
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.io import files
from bert_tf.io import train_log
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_files import DEV
from bert_tf.tasks.task_files import TEST
from bert_tf.tasks.task_files import TRAIN
from bert_tf.training import output as training_output


def run(config: FinetuneConfig, experiment: Experiment) -> dict[str, Metrics]:
    """Runs all trials, or evaluates the stored model, and reports.

    Every worker computes the same results; only the chief writes files.

    Args:
      config: The flags.
      experiment: What `experiment.prepared` reads: model, data and devices.

    Returns:
      Split to metrics.

    Raises:
      Preempted: If the process was asked to stop; checkpoints are kept.
      UserError: For errors that the user can fix.
    """
    training_output.warn_of_flags(config, training_output.MEANINGLESS_FLAGS)
    coordinator, folder = experiment.devices.coordinator, config.output_dir
    if config.do_train:
        training_output.start_over(config, coordinator)
    if coordinator.is_chief:
        train_log.open_in(folder)
    if not config.do_train:
        return _evaluate_stored_model(config, experiment)
    trial_configs = config.trials()
    if len(trial_configs) == 1:
        trial = experiment.for_trial(trial_configs[0], folder)
        results = _run_trial(config, trial)
    else:
        results = grid_search.run_trials(
            config,
            experiment,
            trial_configs,
            functools.partial(_run_trial, config),
            functools.partial(_evaluate_finished_trial, config),
        )
    if coordinator.is_chief:
        training_output.print_report(folder, results, _next_commands(folder))
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


def _run_trial(
    config: FinetuneConfig, experiment: Experiment
) -> dict[str, Metrics]:
    """Runs one trial and frees its device memory."""
    tf.io.gfile.makedirs(experiment.output_dir)
    trial = Trial(config, experiment)
    trial.restore_or_initialize()
    try:
        return _train_and_evaluate(trial, config, experiment)
    finally:
        trial.release()  # Other trials may follow.


def _train_and_evaluate(
    trial: Trial, config: FinetuneConfig, experiment: Experiment
) -> dict[str, Metrics]:
    """Trains, evaluates and predicts, then writes the results."""
    task, coordinator = experiment.task, experiment.devices.coordinator
    output_dir = experiment.output_dir
    first_step = trial.step
    trial.train()
    stored_results, stored_task = {}, {}
    if (
        coordinator.is_chief
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
        config,
        experiment,
        task,
        trial.evaluator,
        trial.chosen_step,
        stored_results,
    )
    evaluations = trial.evaluations
    scored = [split for split in results if split.startswith(DEV)]
    if scored and not config.selects_evaluation:
        final = results[scored[0]]
        trial.write_summaries("eval", final)
        if evaluations:  # They lack what is compared at the end only.
            final = {
                name: final[name] for name in final if name in evaluations[0]
            }
        evaluations = [*evaluations, {"global_step": trial.step} | final]
    if coordinator.is_chief:
        training_output.draw_learning_curves(
            output_dir, evaluations, None, f"Fine-tuning for {_subject(task)}"
        )
        _write_model(
            config,
            experiment,
            task,
            trial.weights(),
            trial.chosen_step,
            stored_task.get("results", {}) | results,
        )
    return results


def _evaluate_finished_trial(
    config: FinetuneConfig, experiment: Experiment
) -> dict[str, Metrics]:
    """Evaluates a finished trial on splits that it was not evaluated on."""
    stored = _read_model(experiment.output_dir)
    stored_results = stored.task.get("results", {})
    task, results = _evaluate_model(config, experiment, stored, stored_results)
    if experiment.devices.coordinator.is_chief:
        _write_model(
            config,
            experiment,
            task,
            dict(stored.weights),
            _step_of(stored),
            stored_results | results,
        )
    return results


def _evaluate_stored_model(
    config: FinetuneConfig, experiment: Experiment
) -> dict[str, Metrics]:
    """Evaluates and predicts with the model that the experiment starts from."""
    task, stored = experiment.task, experiment.stored
    output_dir = config.output_dir
    is_own = pretrained_models.has_trained_model(config)
    stored_results: Mapping[str, Metrics] = {}
    if is_own:
        # Keep the scores of splits that are not evaluated again.
        stored_results = stored.task.get(
            "results", {}
        ) | task_evaluation.read_results(output_dir, _step_of(stored))
    tuned, results = _evaluate_model(config, experiment, stored, stored_results)
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


def _evaluate_model(
    config: FinetuneConfig,
    experiment: Experiment,
    stored: StoredModel,
    stored_results: Mapping[str, Metrics],
) -> tuple[Task, dict[str, Metrics]]:
    """Calls `_evaluate` for a stored model."""
    model = pretrained_models.build_model(
        stored, experiment.task, experiment.devices, keep_head=True
    )
    return _evaluate(
        config,
        experiment,
        experiment.task,
        functools.partial(experiment.build_evaluator, model),
        _step_of(stored),
        stored_results,
    )


def _step_of(stored: StoredModel) -> int:
    return int(stored.task.get("global_step", 0))


def _evaluate(
    config: FinetuneConfig,
    experiment: Experiment,
    task: Task,
    build_evaluator: Callable[[int], Evaluator],
    global_step: int,
    stored_results: Mapping[str, Metrics],
) -> tuple[Task, dict[str, Metrics]]:
    """Scores dev and predicts test as the flags request; the chief writes.

    Returns:
      The task with the threshold selected on dev, and split to metrics.
    """
    is_chief = experiment.devices.coordinator.is_chief
    output_dir, results = experiment.output_dir, {}
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
    return model_directory.read_model(
        os.path.join(output_dir, model_directory.MODEL_FOLDER)
    )


def _write_model(
    config: FinetuneConfig,
    experiment: Experiment,
    task: Task,
    weights: Mapping[str, np.ndarray],
    step: int,
    results: Mapping[str, Metrics],
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
                config, **dataclasses.asdict(experiment.trial)
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
        experiment.output_dir,
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
