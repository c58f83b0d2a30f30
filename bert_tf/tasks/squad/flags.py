"""Builds the SQuAD task from the flags of run/finetune_squad.py."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from absl import logging

from bert_tf.flags.squad import SquadConfig
from bert_tf.tasks import task as task_lib
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.task import Data

# Flags that change how a model reads text or selects answers, and so its score.
_READING_FLAGS = (
    "max_seq_length",
    "doc_stride",
    "max_query_length",
    "n_best_size",
    "max_answer_length",
)


def build_task(
    config: SquadConfig,
    stored_task: Mapping[str, Any] | None,
    data: Data | None = None,
) -> SquadTask:
    """Returns the task that the flags describe.

    Args:
      config: The flags.
      stored_task: Without training, the model's task.json: its head is used,
        and its threshold unless the flags set one.
      data: The data of --predict_file, if it has been read before.
    """
    threshold = config.null_score_diff_threshold
    source = "--null_score_diff_threshold"
    head = config.head
    if stored_task is not None:
        head = stored_task.get("head", "linear")
        _compare_versions(config, stored_task)
        task_lib.warn_of_settings(
            stored_task,
            {name: getattr(config, name) for name in _READING_FLAGS},
        )
        if threshold is None:
            threshold = stored_task.get("null_score_diff_threshold")
            source = "the model"
    if threshold is not None:
        logging.info(
            "The null_score_diff_threshold %.6g is from %s.",
            threshold,
            source,
        )
    names = {field.name for field in dataclasses.fields(SquadTask)}
    flags = {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if name in names
    }
    files = _files(config)
    return SquadTask(
        **flags
        | {
            "null_score_diff_threshold": threshold,
            "head": head,
            "files": files,
            "data": {x: data for x in files if data and x != task_lib.TRAIN},
            # As in the original, which has a single length.
            "mask_padding": config.num_length_buckets != 1,
        }
    )


def _files(config: SquadConfig) -> dict[str, str]:
    files = {}
    if config.do_train:
        files[task_lib.TRAIN] = config.train_file
    if config.do_eval:
        files[task_lib.DEV] = config.predict_file
    elif config.do_predict:
        files[task_lib.TEST] = config.predict_file
    return files


def _compare_versions(
    config: SquadConfig, stored_task: Mapping[str, Any]
) -> None:
    trained = stored_task.get("version_2_with_negative")
    flag = config.version_2_with_negative
    if trained is not None and trained != flag:
        logging.warning(
            "The model was trained with version_2_with_negative=%s and is used "
            "with %s.",
            trained,
            flag,
        )
