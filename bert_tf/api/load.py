"""`load_model` and `load_tokenizer`: trained models, by path or name."""

import os
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import keras

from bert_tf import errors
from bert_tf.api import default_training
from bert_tf.api import models
from bert_tf.api.save import as_path
from bert_tf.checkpoints import formats
from bert_tf.checkpoints.huggingface.model import LABELLED
from bert_tf.checkpoints.load import MODELS
from bert_tf.checkpoints.load import advise_new_pooler
from bert_tf.checkpoints.load import build_model
from bert_tf.config import check_bools
from bert_tf.errors import UserError
from bert_tf.errors import did_you_mean
from bert_tf.modeling.heads import require_names
from bert_tf.tasks import registry
from bert_tf.tasks.metrics import METRICS_OF_PROBLEM
from bert_tf.text.tokenizer import BertTokenizer

_PROBLEM_TYPES = ("single_label", "multi_label")
_MODEL_NAME = 'a path as a text, or a name such as "bert-base-uncased"'


def load_model(
    path: str | os.PathLike,
    kind: str | None = None,
    *,
    labels: Sequence[str] | None = None,
    num_labels: int | None = None,
    new_parts: Collection[str] = (),
    max_seq_length: int | None = None,
    problem_type: str | None = None,
    cache_dir: str | os.PathLike | None = None,
    offline: bool | None = None,
    **kwargs: Any,
) -> keras.Model:
    """Loads a trained model of any format.

    If `kind` differs from the stored model's kind, the result is the stored
    encoder with a new head, ready for fine-tuning.

    Args:
      path: A model directory, a Hugging Face directory, a KerasHub preset, a
        SavedModel of TF Hub or a `.keras` file, which stays compiled if no
        other argument is given. Or the directory or prefix of a checkpoint of
        the original or the Model Garden, with its configuration beside it. If
        no such path exists, a model to download: "bert-base-uncased"
        (run/models.py lists such names), "hf://owner/name[@revision]",
        "kaggle://owner/model/keras/variation[/version]", or the https://
        address of a .zip or .tar.gz file.
      kind: The kind of model to build: "encoder", "pretraining", "masked_lm",
        "next_sentence", "classification", "question_answering", "tagging",
        "multiple_choice" or "embeddings"; by default the stored model's kind.
      labels: Names of the labels of a new head for classification or tagging.
      num_labels: The number of labels, for labels without names.
      new_parts: Parts to initialize randomly although the weights are stored:
        "head", "pooler".
      max_seq_length: The maximum number of tokens in a row of text, for `fit`,
        `predict` and `preprocessor`; by default as in training, else 384 for
        question answering and 128 for other tasks.
      problem_type: "single_label" or "multi_label", for classification; by
        default the stored value, or else as the labels in `fit` require.
      cache_dir: The directory for models downloaded by a short name or an
        address; by default $BERT_TF_CACHE, else ~/.cache/bert_tf. Models of
        Hugging Face and Kaggle are in the caches of these hubs.
      offline: If true, no model is downloaded; by default $BERT_TF_OFFLINE.
      **kwargs: Arguments of the model's constructor, for instance
        `return_all_layers=True` or `dtype="mixed_bfloat16"`.

    Returns:
      A `BertModel`, `BertForPretraining`, `BertForClassification`,
      `BertForQuestionAnswering`, `BertForTagging`, `BertForMultipleChoice` or
      `BertForEmbeddings`, where `predict` returns <float32>[rows, size].
      `model.bert` is the encoder, unless the model is a `BertModel`. For
      classification and tagging, `model.labels` has the labels' names, or None.
      The `predict` of a model with a task head also accepts raw rows, such as
      texts, and returns the same values as run/predict.py.
      `model.preprocessor`, with tokenizer and task, converts texts to inputs.

    Raises:
      UserError: If `path` names no model, the model is damaged, its weights do
        not match its configuration, or an argument is wrong.

    Example:
      >>> model = bert_tf.load_model(
      ...     "bert-base-uncased", "classification", labels=["bad", "good"]
      ... )
      >>> texts = ["A fine film.", "A waste of time."]
      >>> history = model.fit(texts, ["good", "bad"], verbose=0)
      >>> sorted(model.predict(["I enjoyed it."])[0])
      ['label', 'probabilities', 'probability']
    """
    path = as_path(path, _MODEL_NAME)
    known = [*map(errors.arguments_of, (load_model, *MODELS.values()))]
    errors.check_arguments("load_model", kwargs, sum(known, []))
    default_training.check_counts(
        num_labels=num_labels, max_seq_length=max_seq_length
    )
    check_bools(offline=offline)
    labels = require_names(labels)
    if labels and len(labels) == 1 and kind in (None, *LABELLED):
        raise UserError(
            "Expected at least two labels; a model that predicts a score has "
            f"num_labels=1 instead. Received: labels={list(labels)!r}."
        )
    changes = (kind, labels, num_labels, max_seq_length, problem_type)
    is_as_stored = not any(changes) and not new_parts and not kwargs
    model = None
    is_file = path.endswith(".keras") and os.path.isfile(path)
    if is_as_stored and is_file and formats.detect(path) == "keras":
        model = keras.saving.load_model(path)
        if model.preprocessor is not None:
            return model
    stored = formats.read(path, None, None, cache_dir, offline)
    values = {"kind": stored.task["kind"] if kind is None else kind}
    if "head" not in new_parts and values["kind"] == stored.task["kind"]:
        values = dict(stored.task)
    if values["kind"] == "embeddings":
        values |= registry.describe_embeddings(stored)
        task = registry.build_embeddings(stored)
        kwargs = task.model_arguments() | kwargs
        values |= {name: kwargs[name] for name in task.model_arguments()}
    if problem_type is not None:
        is_kind = values["kind"] == "classification"
        if not is_kind or problem_type not in _PROBLEM_TYPES:
            raise UserError(
                "Expected problem_type for classification, one of "
                f"{', '.join(_PROBLEM_TYPES)}; a model that predicts a score "
                f"has num_labels=1 instead. Received: {problem_type=} for "
                f"kind={values['kind']!r}"
                f"{did_you_mean(problem_type, _PROBLEM_TYPES)}"
            )
        values["problem_type"] = problem_type
        values["metrics"] = list(METRICS_OF_PROBLEM[problem_type])
    if model is None:  # Otherwise `model` comes from a .keras file.
        model = build_model(
            stored,
            kind,
            labels=labels,
            num_labels=num_labels,
            new_parts=new_parts,
            as_class=models.with_text,
            **kwargs,
        )
    model.attach_text(stored, values, max_seq_length)
    model.preprocessor.embedding_values = registry.describe_embeddings(stored)
    model.preprocessor.advice = advise_new_pooler(
        stored, model, new_parts, 'load_model(..., new_parts=["pooler"])'
    )
    return model


@errors.suggests_arguments
def load_tokenizer(
    path: str | os.PathLike,
    preserve_special_tokens: bool | None = None,
    *,
    cache_dir: str | os.PathLike | None = None,
    offline: bool | None = None,
) -> BertTokenizer:
    """Loads the tokenizer of a trained model of any format.

    Args:
      path: As for `load_model`.
      preserve_special_tokens: If true, special tokens such as [MASK] in a text
        stay whole; by default the stored setting.
      cache_dir: As for `load_model`.
      offline: As for `load_model`.

    Raises:
      UserError: If `path` names no model, or the model has no vocabulary.

    Example:
      >>> tokenizer = bert_tf.load_tokenizer("bert-base-uncased")
      >>> tokenizer.detokenize(tokenizer.tokenize(["The match"])).numpy()
      array([b'the match'], dtype=object)
    """
    check_bools(offline=offline)
    path = as_path(path, _MODEL_NAME)
    stored = formats.read(path, None, None, cache_dir, offline)
    return stored.build_tokenizer(preserve_special_tokens)
