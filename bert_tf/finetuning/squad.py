"""Fine-tuning on SQuAD, after TriviaQA if requested, and ensembles."""

import dataclasses
import functools
import os

from absl import logging

from bert_tf.checkpoints import model_directory
from bert_tf.config import fields_affecting
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.finetuning import evaluate as task_evaluation
from bert_tf.finetuning import pretrained_model as pretrained_models
from bert_tf.finetuning import run as finetuning
from bert_tf.finetuning.evaluate import Metrics
from bert_tf.finetuning.run import BuildTask
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.io import files
from bert_tf.tasks.squad import predictions as squad_predictions
from bert_tf.tasks.squad import triviaqa
from bert_tf.tasks.squad.examples import SquadFiles
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.task_files import DEV
from bert_tf.training import output as training_output
from bert_tf.training import preemption as preemptions
from bert_tf.training.preemption import Preemption

TRIVIAQA_FOLDER = "triviaqa"
_CONVERTED_FILE = "train.json"
# A rerun skips the training on TriviaQA if this file has the same settings.
_DONE_FILE = "done.json"

# These flags are set to neutral values for the training on TriviaQA.
_NOT_OF_TRIVIAQA = {
    "predict_file": None,
    "dev_fraction": None,
    "do_eval": False,
    "do_predict": False,
    "keep_best": False,
    "early_stopping_patience": 0,
    "evaluate_every_steps": 0,
    "num_restarts": 1,
    "null_score_diff_threshold": None,
    "triviaqa_file": None,
    "triviaqa_evidence_dir": None,
}


def run(
    config: FinetuneConfig, task_files: SquadFiles, build_task: BuildTask
) -> dict[str, Metrics]:
    """Runs fine-tuning, prediction or an ensemble for run/finetune_squad.py.

    The task of SQuAD has the files `task_files`, the task of TriviaQA its own.
    """
    if (
        config.null_score_diff_threshold is not None
        and not config.version_2_with_negative
    ):
        logging.warning(
            "--null_score_diff_threshold has no effect without "
            "--version_2_with_negative."
        )
    build_squad = functools.partial(build_task, task_files=task_files)
    if config.ensemble_nbest_files:
        return _combine(config, build_squad(config, None))
    # Prepare devices once for both trainings: workers cannot connect twice.
    with preemptions.prepare(config) as (devices, preemption):
        if config.triviaqa_file:
            config = _train_on_triviaqa(config, devices, preemption, build_task)
        return finetuning.run_on(config, build_squad, devices, preemption)


# === TriviaQA ===


def _train_on_triviaqa(
    config: FinetuneConfig,
    devices: Devices,
    preemption: Preemption,
    build_task: BuildTask,
) -> FinetuneConfig:
    """Fine-tunes on TriviaQA and returns the flags for SQuAD.

    Source: section 4.2 of the paper, which states no hyperparameters, so the
    training on TriviaQA uses the flags for SQuAD.
    """
    training_output.start_over(config, devices.coordinator)
    config = dataclasses.replace(config, overwrite_output_dir=False)
    folder = os.path.join(config.output_dir, TRIVIAQA_FOLDER)
    first = dataclasses.replace(
        config,
        **_NOT_OF_TRIVIAQA
        | {
            "output_dir": folder,
            "train_file": os.path.join(folder, _CONVERTED_FILE),
        },
    )
    done_file = os.path.join(folder, _DONE_FILE)
    model_dir = os.path.join(folder, model_directory.MODEL_FOLDER)
    # Retrain if contents, precision or --triviaqa_evidence_dir change, but not
    # if devices or other paths do.
    places = fields_affecting(type(config), "place")
    recipe = {
        name: value
        for name, value in dataclasses.asdict(first).items()
        if name not in places
    } | {
        "the model": pretrained_models.read(first).fingerprint,
        "triviaqa_file": files.sha256(
            files.require_file(config.triviaqa_file, "--triviaqa_file")
        ),
        "triviaqa_evidence_dir": config.triviaqa_evidence_dir,
    }
    coordinator = devices.coordinator
    is_done = coordinator.from_chief(
        coordinator.is_chief
        and model_directory.recognizes(model_dir)
        and files.exists(done_file)
        and files.read_json(done_file) == recipe
    )
    if is_done:
        logging.info("The fine-tuning on TriviaQA is done: %s.", model_dir)
    else:
        logging.info("Fine-tuning on TriviaQA, in %s.", folder)
        if coordinator.is_chief:
            converted = triviaqa.convert_to_squad(
                config.triviaqa_file, config.triviaqa_evidence_dir
            )
            files.write_json(first.train_file, converted)
        coordinator.from_chief(None)  # Waits for the converted file.
        finetuning.run_on(first, build_task, devices, preemption)
        if coordinator.is_chief:
            files.write_json(done_file, recipe)
        # Wait, or other workers would read the model before it is written.
        coordinator.barrier("the model of TriviaQA")
    logging.info("Fine-tuning on SQuAD.")
    return dataclasses.replace(
        config,
        pretrained_model_dir=model_dir,
        init_checkpoint=None,
        bert_config_file=None,
        vocab_file=None,
    )


# === Ensembles ===


def _combine(config: FinetuneConfig, task: SquadTask) -> dict[str, Metrics]:
    """Predicts with an ensemble of models, from their n-best files."""
    paths = files.expand_globs(
        config.ensemble_nbest_files, "--ensemble_nbest_files"
    )
    (split,) = task.files
    examples = task.load(split).data[split].examples
    combined = {
        prediction.qas_id: prediction
        for prediction in squad_predictions.combine(
            paths, config.version_2_with_negative
        )
    }
    differing = {example.qas_id for example in examples} ^ combined.keys()
    if differing:
        raise UserError(
            "--ensemble_nbest_files must be about the questions of "
            f"{config.predict_file}. Received: {len(differing)} questions "
            f"found in only one of them, such as {min(differing)!r}."
        )
    predictions = [combined[example.qas_id] for example in examples]
    logging.info("Combined %d systems: %s.", len(paths), ", ".join(paths))
    results = {}
    if split == DEV and task.is_labeled(examples):
        task = task.select_threshold(examples, lambda _: predictions)
        results[split] = task.score(examples, predictions)
        logging.info("%s: %s", split, task_evaluation.describe(results[split]))
        task_evaluation.write_results(config.output_dir, 0, results)
    task.write_report(config.output_dir, split, examples, predictions)
    return results
