"""Fine-tuning, from the flags to scores, predictions and the model.

One run lies directly in --output_dir. Several, as the paper's section A.3 has
them, lie in runs/<name>/, and the best of them on dev is copied up.
"""

import os
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from bert_tf import keras_backend
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.distribute import devices as device_setup
from bert_tf.distribute.devices import Devices
from bert_tf.errors import NotFiniteError
from bert_tf.errors import UserError
from bert_tf.finetuning import evaluate as task_evaluation
from bert_tf.finetuning import experiment as experiments
from bert_tf.finetuning import grid_search
from bert_tf.finetuning import output as finetuning_output
from bert_tf.finetuning import pretrained_model as pretrained_models
from bert_tf.finetuning import task_model
from bert_tf.finetuning.evaluate import Evaluator
from bert_tf.finetuning.evaluate import Metrics
from bert_tf.finetuning.evaluate import SplitReader
from bert_tf.finetuning.experiment import Experiment
from bert_tf.finetuning.objective_source import Labels
from bert_tf.finetuning.objective_source import Supervision
from bert_tf.finetuning.trial import Trial
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.flags.finetune import TrialConfig
from bert_tf.io import files
from bert_tf.pretraining import output as pretraining_output
from bert_tf.tasks.task import DEV
from bert_tf.tasks.task import TEST
from bert_tf.tasks.task import Task
from bert_tf.training import learning_curves
from bert_tf.training.preemption import Preemption

# Makes the task of the flags; when nothing is trained it gets the task.json
# of the model.
BuildTask = Callable[[Any, Mapping[str, Any] | None], Task]
# Makes what runs learn from, of the task, its data, and where to compute.
Supervise = Callable[[Task, SplitReader, Devices], Supervision]


def run(
    config: FinetuneConfig,
    build_task: BuildTask,
    read_start: Callable[[Any], StoredModel] = pretrained_models.read,
    supervise: Supervise = Labels,
) -> dict[str, Metrics]:
    """Does what a fine-tuning script is asked for.

    Of several workers each computes and gets the same; the chief alone writes.

    Args:
      config: The flags.
      build_task: Makes the task.
      read_start: Returns the model that training begins with, of the flags.
      supervise: Makes what it learns from.

    Returns:
      Split to metrics.

    Raises:
      Preempted: If it was asked to stop; what is done is kept.
      UserError: For whatever the user can mend.
    """
    with Preemption() as preemption:
        # Workers must find each other before anything is computed.
        devices = device_setup.prepare(config)
        with devices.together():
            return run_on(
                devices, preemption, config, build_task, read_start, supervise
            )


def run_on(
    devices: Devices,
    preemption: Preemption,
    config: FinetuneConfig,
    build_task: BuildTask,
    read_start: Callable[[Any], StoredModel] = pretrained_models.read,
    supervise: Supervise = Labels,
) -> dict[str, Metrics]:
    """Does the same on devices that the caller has prepared."""
    keras_backend.require_tensorflow()
    pretraining_output.warn_of_flags(
        config, pretraining_output.MEANINGLESS_FLAGS
    )
    if devices.coordinator.is_chief:
        files.require_checkpoint_folder(config.output_dir, "--output_dir")
    if not config.do_train:
        return _evaluate_only(config, build_task, supervise, devices)
    return _train(
        config, build_task, read_start, supervise, devices, preemption
    )


def _train(
    config: FinetuneConfig,
    build_task: BuildTask,
    read_start: Callable[[Any], StoredModel],
    supervise: Supervise,
    devices: Devices,
    preemption: Preemption,
) -> dict[str, Metrics]:
    """Does all the runs that the flags ask for."""
    stored = read_start(config)
    task = build_task(config, None)
    _require_split(config, task)
    reader = SplitReader(task, stored.build_tokenizer())
    for split in task.files:
        reader.examples(split)  # What is wrong there is said before training.
    data_hashes = experiments.hash_data(task)
    experiments.agree(devices.coordinator, config, stored, data_hashes)
    experiment = Experiment(
        config=config,
        task=task,
        stored=stored,
        reader=reader,
        devices=devices,
        data_hashes=data_hashes,
        supervision=supervise(task, reader, devices),
        preemption=preemption,
    )
    runs = config.runs()
    if len(runs) == 1:
        return _run_once(experiment, runs[0], config.output_dir)
    return grid_search.run_all(
        experiment,
        runs,
        lambda trial_config, folder: _run_once(
            experiment, trial_config, folder
        ),
        lambda trial_config, folder: _evaluate_again(
            experiment, trial_config, folder
        ),
    )


def _require_split(config: FinetuneConfig, task: Task) -> None:
    for kind in config.asked_kinds():
        if not task.splits(kind):
            raise UserError(f"The task {task.name} has no {kind} data.")


def _run_once(
    experiment: Experiment, trial_config: TrialConfig, output_dir: str
) -> dict[str, Metrics]:
    """Does a run, and gives its memory back."""
    tf.io.gfile.makedirs(output_dir)
    run = Trial(experiment, trial_config, output_dir)
    try:
        results = _do(run, experiment, trial_config, output_dir)
    except NotFiniteError:
        run.release()  # Other runs may follow.
        raise
    run.release()
    return results


def _do(
    run: Trial,
    experiment: Experiment,
    trial_config: TrialConfig,
    output_dir: str,
) -> dict[str, Metrics]:
    """Trains, evaluates, predicts, and writes what is left of it."""
    config, task = experiment.config, experiment.task
    first_step = run.step
    course = run.train()
    coordinator = experiment.devices.coordinator
    is_chief = coordinator.is_chief
    known, written = {}, {}
    if (
        is_chief
        and run.step == first_step
        and pretraining_output.model_is_written(output_dir, run.chosen_step)
    ):
        # It was done before: what is not evaluated now does not go.
        known = task_evaluation.read_results(output_dir, run.chosen_step)
        written = finetuning_output.read(output_dir).task
    # All predict with the same threshold.
    written = coordinator.from_chief(written)
    if not task.splits(DEV):  # Else that tunes it again.
        task = task.with_threshold(written)
    task, results = _evaluate(
        config,
        task,
        run.evaluator,
        experiment.supervision,
        output_dir if is_chief else None,
        run.chosen_step,
        known,
    )
    evaluations = run.evaluations
    scored = [split for split in results if split.startswith(DEV)]
    if scored and not evaluations:
        course.write_summaries("eval", results[scored[0]])
        evaluations = [{"global_step": run.step} | results[scored[0]]]
    if is_chief:
        pretraining_output.draw_learning_curves(
            output_dir,
            evaluations,
            learning_curves.draw_finetuning,
            f"Fine-tuning for {task.name}",
        )
        finetuning_output.write(
            experiment,
            trial_config,
            task,
            run.weights(),
            run.chosen_step,
            written.get("results", {}) | results,
            output_dir,
        )
    return results


def _evaluate_again(
    experiment: Experiment, trial_config: TrialConfig, output_dir: str
) -> dict[str, Metrics]:
    """Evaluates a run that is done on data that it was not evaluated on."""
    stored = finetuning_output.read(output_dir)
    model = task_model.build_model(
        stored, experiment.task, experiment.devices, keep_head=True
    )
    step = int(stored.task["global_step"])
    is_chief = experiment.devices.coordinator.is_chief
    known = stored.task.get("results", {})
    task, results = _evaluate(
        experiment.config,
        experiment.task,
        _evaluators(
            experiment.config, model, experiment.reader, experiment.devices
        ),
        experiment.supervision,
        output_dir if is_chief else None,
        step,
        known,
    )
    if is_chief:
        weights = {name: stored.weights[name] for name in stored.weights}
        finetuning_output.write(
            experiment,
            trial_config,
            task,
            weights,
            step,
            known | results,
            output_dir,
        )
    return results


def _evaluate_only(
    config: FinetuneConfig,
    build_task: BuildTask,
    supervise: Supervise,
    devices: Devices,
) -> dict[str, Metrics]:
    """Evaluates and predicts with a model that is there."""
    path = os.path.join(config.output_dir, model_directory.MODEL_FOLDER)
    known: Mapping[str, Metrics] = {}
    is_own = model_directory.recognizes(path)
    is_own = is_own and not config.pretrained_model_dir
    if is_own:
        stored = pretrained_models.read_trained(path, config)
        # What is not evaluated now does not go.
        known = stored.task.get("results", {}) | task_evaluation.read_results(
            config.output_dir, stored.task.get("global_step", 0)
        )
    elif config.pretrained_model_dir or config.init_checkpoint:
        stored = pretrained_models.read(config)
    else:
        raise UserError(
            f"There is no trained model in {path}; add --do_train, or give a "
            "fine-tuned one with --pretrained_model_dir."
        )
    task = build_task(config, stored.task)
    _require_split(config, task)
    coordinator = devices.coordinator
    experiments.agree(coordinator, config, stored, experiments.hash_data(task))
    model = task_model.build_model(stored, task, devices, keep_head=True)
    reader = SplitReader(task, stored.build_tokenizer())
    tuned, results = _evaluate(
        config,
        task,
        _evaluators(config, model, reader, devices),
        supervise(task, reader, devices),
        config.output_dir if coordinator.is_chief else None,
        int(stored.task.get("global_step", 0)),
        known,
    )
    if tuned != task and coordinator.is_chief:
        if is_own:
            finetuning_output.keep_tuning(
                stored, task, tuned, config.output_dir
            )
        else:
            logging.warning(
                "What dev has chosen is not kept in %s, which is not in "
                "--output_dir.",
                stored.path,
            )
    return results


def _evaluators(
    config: FinetuneConfig,
    model: keras.Model,
    reader: SplitReader,
    devices: Devices,
) -> Callable[[int], Evaluator]:
    """Returns what makes an evaluator of a model, given the batch size."""
    return lambda batch_size: Evaluator(
        model,
        reader,
        batch_size,
        config.num_length_buckets,
        devices.strategy,
        devices.coordinator.is_chief,
    )


def _evaluate(
    config: FinetuneConfig,
    task: Task,
    build_evaluator: Callable[[int], Evaluator],
    supervision: Supervision,
    output_dir: str | None,
    global_step: int,
    known: Mapping[str, Metrics] | None = None,
) -> tuple[Task, dict[str, Metrics]]:
    """Scores dev and predicts test, as far as asked for, and writes both.

    Args:
      config: The flags.
      task: The task.
      build_evaluator: Makes an evaluator of the model, given the batch size.
      supervision: What the model has learnt from.
      output_dir: Where to; without it nothing is written, as another worker
        does.
      global_step: Steps the model was trained for.
      known: What is known of the model from earlier: split to metrics.

    Returns:
      The task as dev tuned it, and split to metrics.
    """
    results = {}
    for asked, kind, batch_size in (
        (config.do_eval, DEV, config.eval_batch_size),
        (config.do_predict, TEST, config.predict_batch_size),
    ):
        if not asked:
            continue
        evaluator = build_evaluator(batch_size)
        for number, split in enumerate(task.splits(kind)):
            # Of several dev sets the first one decides, as in the paper; what
            # was chosen when the model was trained a task does not change.
            tune = kind == DEV and number == 0
            evaluated = evaluator.evaluate(split, task, tune)
            task = evaluated.task
            if evaluated.metrics:
                compared = supervision.compare(split)
                results[split] = evaluated.metrics | compared
            if output_dir is not None:
                with pretraining_output.writing("The predictions", output_dir):
                    task_evaluation.write_predictions(output_dir, evaluated)
    if results and output_dir is not None:
        with pretraining_output.writing("The results", output_dir):
            task_evaluation.write_results(
                output_dir, global_step, dict(known or {}) | results
            )
    return task, results
