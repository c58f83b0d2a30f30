"""Fine-tuning on SQuAD, with TriviaQA before it, and ensembles of runs."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import model_directory
from bert_tf.distribute import devices as device_setup
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.finetuning import evaluate as task_evaluation
from bert_tf.finetuning import pretrained_model as pretrained_models
from bert_tf.finetuning import run as finetuning
from bert_tf.finetuning.evaluate import Metrics
from bert_tf.flags.devices import DeviceConfig
from bert_tf.flags.squad import SquadConfig
from bert_tf.io import files
from bert_tf.tasks import task as task_lib
from bert_tf.tasks.squad import ensemble as squad_ensemble
from bert_tf.tasks.squad import triviaqa
from bert_tf.tasks.squad.predictions import SquadPrediction
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.task import DEV
from bert_tf.tasks.task import TEST
from bert_tf.tasks.task import TRAIN
from bert_tf.training.preemption import Preemption

TRIVIAQA_FOLDER = "triviaqa"
# TriviaQA in SQuAD's format, and what it was made of.
_CONVERTED_FILE = "train.json"
_CONVERSION_FILE = "conversion.json"
# Written last: the flags of the training that is done.
_DONE_FILE = "done.json"

# With others of these a model reads, or answers, other than it was scored.
_READING_FLAGS = (
    "max_seq_length",
    "doc_stride",
    "max_query_length",
    "n_best_size",
    "max_answer_length",
)

# How a model is trained does not depend on these.
_NOT_OF_TRIVIAQA = {
    "predict_file": None,
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

# Nor on where, but for the precision, and it may be elsewhere next time. What
# files hold counts, and not where they lie.
_ABOUT_PLACES = {
    "bert_config_file",
    "init_checkpoint",
    "output_dir",
    "pretrained_model_dir",
    "train_file",
    "vocab_file",
    "xla",
    *(field.name for field in dataclasses.fields(DeviceConfig)),
} - {"mixed_precision"}


def run(config: SquadConfig) -> dict[str, Metrics]:
    """Does what run/finetune_squad.py is asked for.

    What is predicted is scored too where the file has the answers.

    Returns:
      Split to metrics.

    Raises:
      UserError: For whatever the user can mend.
    """
    if (
        config.null_score_diff_threshold is not None
        and not config.version_2_with_negative
    ):
        logging.warning(
            "--null_score_diff_threshold has no effect without "
            "--version_2_with_negative."
        )
    config = _choose_scoring(config)
    if config.ensemble_nbest_files:
        return _combine(config)
    with Preemption() as preemption:
        # Once for both trainings: workers find each other only once.
        devices = device_setup.prepare(config)
        with devices.together():
            if config.triviaqa_file:
                config = _train_on_triviaqa(config, devices, preemption)
            return finetuning.run_on(devices, preemption, config, build_task)


def build_task(
    config: SquadConfig, stored: Mapping[str, Any] | None = None
) -> SquadTask:
    """Returns the task that the flags describe.

    Args:
      config: The flags.
      stored: task.json of the model, if it is not trained now: then its
        threshold is used, unless the flags have one.
    """
    threshold = config.null_score_diff_threshold
    source = "--null_score_diff_threshold"
    head = config.head
    if stored is not None:
        head = stored.get("head", "linear")
        _compare_versions(config, stored)
        task_lib.warn_of_settings(
            stored, {name: getattr(config, name) for name in _READING_FLAGS}
        )
        if threshold is None:
            threshold = stored.get("null_score_diff_threshold")
            source = "the model"
    if threshold is not None:
        logging.info(
            "The null_score_diff_threshold %.6g is that of %s.",
            threshold,
            source,
        )
    names = {field.name for field in dataclasses.fields(SquadTask)}
    given = {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if name in names
    }
    return SquadTask(
        **given
        | {
            "null_score_diff_threshold": threshold,
            "head": head,
            "files": _files(config),
            # As the original, which knows but one length.
            "mask_padding": config.num_length_buckets != 1,
        }
    )


def _files(config: SquadConfig) -> dict[str, str]:
    files_of = {}
    if config.do_train:
        files_of[TRAIN] = config.train_file
    if config.do_eval:
        files_of[DEV] = config.predict_file
    elif config.do_predict:
        files_of[TEST] = config.predict_file
    return files_of


def _compare_versions(config: SquadConfig, stored: Mapping[str, Any]) -> None:
    trained = stored.get("version_2_with_negative")
    asked = config.version_2_with_negative
    if trained is not None and trained != asked:
        logging.warning(
            "The model was trained with version_2_with_negative=%s and is used "
            "with %s.",
            trained,
            asked,
        )


def _choose_scoring(config: SquadConfig) -> SquadConfig:
    """Returns the flags with --do_eval for a file that has answers.

    It is read here, so that what is wrong with it is not found out after
    hours of training.
    """
    if not (config.do_eval or config.do_predict):
        return config
    task = SquadTask(
        files={DEV: config.predict_file},
        version_2_with_negative=config.version_2_with_negative,
    )
    if task.is_labelled(task.read(DEV)):
        return dataclasses.replace(
            config,
            do_eval=True,
            do_predict=False,
            eval_batch_size=config.eval_batch_size or config.predict_batch_size,
        )
    chooses = config.do_train and (
        len(config.runs()) > 1 or config.selects_evaluation
    )
    if config.do_eval or chooses:
        raise UserError(
            f"{config.predict_file} cannot be scored, as questions have no "
            '"answers"; drop --do_eval, and what chooses by dev, to have them '
            "predicted."
        )
    return config


# === TriviaQA ===


def _train_on_triviaqa(
    config: SquadConfig, devices: Devices, preemption: Preemption
) -> SquadConfig:
    """Fine-tunes on TriviaQA and returns the flags to go on with.

    Source: section 4.2 of the paper, which does not say with which
    hyper-parameters: they are those for SQuAD.
    """
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
    flags = {
        name: value
        for name, value in dataclasses.asdict(first).items()
        if name not in _ABOUT_PLACES
    } | {"the model": pretrained_models.read(first).fingerprint()}
    coordinator = devices.coordinator
    is_done = coordinator.from_chief(
        coordinator.is_chief
        and not _convert(config, folder, first.train_file)
        and model_directory.recognizes(model_dir)
        and _read_if_there(done_file) == flags
    )
    if is_done:
        logging.info("The fine-tuning on TriviaQA is done: %s.", model_dir)
    else:
        logging.info("Fine-tuning on TriviaQA, in %s.", folder)
        finetuning.run_on(devices, preemption, first, build_task)
        if coordinator.is_chief:
            files.write_json(done_file, flags)
        # Nobody looks for the model before the chief has written it.
        coordinator.barrier("the model of TriviaQA")
    logging.info("Fine-tuning on SQuAD.")
    return dataclasses.replace(
        config,
        pretrained_model_dir=model_dir,
        init_checkpoint=None,
        bert_config_file=None,
        vocab_file=None,
    )


def _convert(config: SquadConfig, folder: str, target: str) -> bool:
    """Converts TriviaQA unless that is done; returns whether it was not."""
    conversion_file = os.path.join(folder, _CONVERSION_FILE)
    files.require_file(config.triviaqa_file, "--triviaqa_file")
    source = {
        "triviaqa_file": files.sha256(config.triviaqa_file),
        "triviaqa_evidence_dir": config.triviaqa_evidence_dir,
    }
    done = _read_if_there(conversion_file)
    if done is not None and done["source"] == source:
        return False
    converted = triviaqa.convert_to_squad(
        config.triviaqa_file, config.triviaqa_evidence_dir
    )
    counts = {
        name: value
        for name, value in dataclasses.asdict(converted).items()
        if name != "squad"
    }
    logging.info(
        "TriviaQA: %(num_questions)d questions with %(num_documents)d "
        "documents, of which %(num_without_answer)d have no answer in their "
        "beginning and %(num_missing)d are not in --triviaqa_evidence_dir.",
        counts,
    )
    files.write_json(target, converted.squad)
    files.write_json(conversion_file, {"source": source} | counts)
    return True


def _read_if_there(path: str) -> dict[str, Any] | None:
    if not tf.io.gfile.exists(path):
        return None
    return files.read_json_object(path)


# === Ensembles ===


def _combine(config: SquadConfig) -> dict[str, Metrics]:
    """Predicts with several runs together."""
    paths = files.expand_globs(
        config.ensemble_nbest_files, "--ensemble_nbest_files"
    )
    task = build_task(config)
    (split,) = task.files
    examples = task.read(split)
    combined = {
        one.qas_id: one
        for one in squad_ensemble.combine(paths, config.version_2_with_negative)
    }
    _check_questions(config, combined, {one.qas_id for one in examples})
    predictions = [combined[one.qas_id] for one in examples]
    logging.info("Combined %d systems: %s.", len(paths), ", ".join(paths))
    results = {}
    if split == DEV:
        task = task.tune(examples, predictions)
        results[split] = task.score(examples, predictions)
        logging.info("%s: %s", split, task_evaluation.describe(results[split]))
        task_evaluation.write_results(config.output_dir, 0, results)
    task.write_report(config.output_dir, split, examples, predictions)
    return results


def _check_questions(
    config: SquadConfig,
    combined: Mapping[str, SquadPrediction],
    asked: set[str],
) -> None:
    differing = sorted(asked ^ combined.keys())
    if differing:
        raise UserError(
            "--ensemble_nbest_files must be about the questions of "
            f"{config.predict_file}. Received: {len(differing)} that stand in "
            f"one of them only, as {differing[0]!r}."
        )
