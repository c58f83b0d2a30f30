"""Tiny models with each serving head, and their exports."""

import contextlib
import os
from unittest import mock

from bert_tf.export import savedmodel
from bert_tf.export.artifact import Artifact
from bert_tf.export.serving_module import ServingModule
from bert_tf.flags.export import SavedModelConfig
from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.multiple_choice.examples import Columns as ChoiceColumns
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging.task import TaggingTask
from tests.support import tiny_model

LABELS = ("no", "yes", "ümlaut")
# Short and medium texts, and some longer than a row of 12 tokens.
TEXTS = (
    "the cat",
    "東 dog",
    "The CAT sat on the mat.",
    "cafe\u0301 \U0001f642 cat, dog . . mats",
    "the dog sitting on the mats . , " * 9,
)
MAX_SEQ_LENGTH = 12
BUCKETS = "5,8"


def classification(problem_type="single_label", pair=False, **values):
    """Returns the task of a classifier."""
    is_score = problem_type == "regression"
    return ClassificationTask(
        **{
            "name": "custom",
            "max_seq_length": MAX_SEQ_LENGTH,
            "labels": None if is_score else LABELS,
            "problem_type": problem_type,
            "metric_names": ("mean_squared_error",)
            if is_score
            else ("accuracy",),
            "columns": Columns("text", "text_pair" if pair else None),
        }
        | values
    )


def official(task, /, **values):
    """Returns the GLUE task with this name."""
    found = glue_tasks.get_task(task)
    values = {
        "name": task,
        "labels": found.labels,
        "official": found,
        "columns": None,
    } | values
    return classification(
        found.problem_type, metric_names=found.metrics, **values
    )


def multiple_choice():
    """Returns the task of a model for multiple choice."""
    return MultipleChoiceTask(
        name="custom",
        max_seq_length=MAX_SEQ_LENGTH,
        columns=ChoiceColumns(("choices",), "context"),
    )


def squad():
    """Returns a SQuAD 2.0 task."""
    return SquadTask(
        max_seq_length=MAX_SEQ_LENGTH,
        doc_stride=2,
        max_query_length=4,
        n_best_size=5,
        max_answer_length=3,
        version_2_with_negative=True,
    )


def tagging(**values):
    """Returns the task of a tagger."""
    return TaggingTask(
        **{
            "name": "tagging",
            "labels": ("O", "B-x", "I-x", "B-long-name"),
            "max_seq_length": MAX_SEQ_LENGTH,
            "files": {},
        }
        | values
    )


def artifact(**changes):
    """Returns the description of an export of a classifier of pairs."""
    return Artifact(
        **{
            "model_name": "pairs",
            "version": 1,
            "head": "classification",
            "precision": "float32",
            "ids_only": False,
            "max_seq_length": MAX_SEQ_LENGTH,
            "buckets": (5, 8, MAX_SEQ_LENGTH),
            "settings": {"pair": True},
        }
        | changes
    )


def write(folder, task, config=tiny_model.ONE_LAYER):
    """Writes a model for a task or of a kind; returns its path."""
    path = os.path.join(folder, "model")
    if isinstance(task, str):
        return tiny_model.write(path, kind=task, config=config)
    return tiny_model.write_task(path, task, config=config)


def export(model_dir, output_dir, signatures=None, **flags):
    """Exports a model without verification and assets.extra.

    Args:
      model_dir: The model.
      output_dir: The output directory.
      signatures: The signatures to write, to save time; by default all.
      **flags: Flags of the exporter.

    Returns:
      The version directory.
    """
    config = SavedModelConfig(
        model_dir=model_dir,
        output_dir=output_dir,
        **{"buckets": BUCKETS} | flags,
    )
    with graph_alone(), only(signatures):
        savedmodel.run(config)
    versions = [int(name) for name in os.listdir(output_dir)]
    return os.path.join(output_dir, str(max(versions)))


@contextlib.contextmanager
def only(names):
    """Restricts exports to some signatures."""
    if names is None:
        yield
        return
    functions = ServingModule._functions

    def chosen(self):
        return {x: f for x, f in functions(self).items() if x in names}

    with mock.patch.object(ServingModule, "_functions", chosen):
        yield


@contextlib.contextmanager
def graph_alone():
    """Skips verification and assets.extra, which have tests of their own."""
    with (
        mock.patch.object(savedmodel, "complete"),
        mock.patch.object(savedmodel.artifacts, "publish"),
    ):
        yield
