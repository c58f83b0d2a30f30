"""Arguments of `compile` and `fit`: checks, defaults, loss, metrics, masks.

The default loss is the objective of the scripts in run/. A loss or metric given
by name reads logits; Keras' own default would expect probabilities.

Shapes:
  B: batch size.
  S: sequence length.
  P: predictions per sequence.
  V: vocabulary size.
"""

import math
import numbers
import types
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from bert_tf import stateless_random
from bert_tf.api import raw_rows
from bert_tf.errors import UserError
from bert_tf.errors import did_you_mean
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import layouts
from bert_tf.tasks import confidence
from bert_tf.tasks import registry
from bert_tf.tasks.classification import labels as label_values
from bert_tf.tasks.embeddings.task import SCORES
from bert_tf.tasks.embeddings.task import TEXT_IDS
from bert_tf.tasks.embeddings.task import PairsTask
from bert_tf.tasks.packed_rows import LABEL_IDS
from bert_tf.tasks.tagging.features import LABEL_WEIGHTS
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.tasks.task import Task
from bert_tf.text.masking import DynamicMasking
from bert_tf.text.vocabulary import Vocabulary
from bert_tf.training.losses import PretrainingObjective
from bert_tf.training.losses import TaskObjective
from bert_tf.training.losses import weigh
from bert_tf.training.optimizer import build_optimizer

# Rows of at most this many tokens have too little padding to skip.
_SHORT = 16
# Losses and metrics ignore tokens with this label.
NO_LABEL = -1

# The default learning rate and warm-up of the original's run_classifier.py.
_LEARNING_RATE = 5e-5
_WARMUP_PROPORTION = 0.1
# Keras' default batch size: `count_steps` must count the same steps as Keras.
BATCH_SIZE = 32
# The default --seed of finetune_classifier.py, so both draw the same pairs.
_FEW_SHOT_SEED = 12345
_RATE_SETTERS = (
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
)

# Python streams of batches. A batch must hold model inputs, not raw texts.
STREAMS = (keras.utils.PyDataset, types.GeneratorType)
# Data that comes in batches, which `Preprocessor.split` cannot split by rows.
IN_BATCHES = (tf.data.Dataset, *STREAMS)
# Keras' loss function -> its class, which can be built with `from_logits=True`.
_LOSSES = {
    cls().fn: cls
    for cls in (
        keras.losses.BinaryCrossentropy,
        keras.losses.BinaryFocalCrossentropy,
        keras.losses.CategoricalCrossentropy,
        keras.losses.CategoricalFocalCrossentropy,
        keras.losses.SparseCategoricalCrossentropy,
    )
}
# Loss -> its accuracy. Keras would choose an accuracy by the labels' shape, and
# would read several labels of a row as one one-hot label.
_ACCURACY = ("accuracy", "acc")
_ACCURACIES = {
    keras.losses.BinaryCrossentropy: keras.metrics.BinaryAccuracy,
    keras.losses.CategoricalCrossentropy: keras.metrics.CategoricalAccuracy,
    keras.losses.SparseCategoricalCrossentropy: (
        keras.metrics.SparseCategoricalAccuracy
    ),
}

# The default --masked_lm_prob of the original's create_pretraining_data.py.
_MASKED_LM_PROB = 0.15
_ROW_SALT = 21


def count_steps(
    x: Any,
    batch_size: int | None,
    validation_split: float,
    steps_per_epoch: int | None,
    epochs: int,
    callbacks: Any = None,
) -> int | None:
    """Returns the number of steps of the learning rate schedule of `fit`.

    For example, 2 epochs of 50 rows in batches of 20 have 2 * 3 steps. Returns
    None if the data's length is unknown, or if a callback sets the rate. Then
    the rate is constant: Keras lets no callback set a rate with a schedule.
    """
    if any(isinstance(x, _RATE_SETTERS) for x in tf.nest.flatten(callbacks)):
        return None
    if steps_per_epoch is not None:
        return steps_per_epoch * epochs
    if isinstance(x, tf.data.Dataset):
        steps = int(x.cardinality())
        return steps * epochs if steps > 0 else None
    if isinstance(x, keras.utils.PyDataset):
        return x.num_batches and x.num_batches * epochs
    leaf = next(iter(tf.nest.flatten(x)), None)
    if not hasattr(leaf, "shape") or not leaf.shape:
        return None
    num_rows = math.floor(leaf.shape[0] * (1 - validation_split))
    return -(-num_rows // (batch_size or BATCH_SIZE)) * epochs


def compile_arguments(
    task: Task | None, num_steps: int | None
) -> dict[str, Any]:
    """Returns the arguments of `compile` for a run of `num_steps` steps.

    Uses the defaults of run/finetune_classifier.py, but for pairs the defaults
    of run/finetune_embeddings.py. If `num_steps` is None, the learning rate is
    constant. `task` is None for masked language models.
    """
    optimizer = build_optimizer(
        "adamw" if isinstance(task, PairsTask) else "bert_adam",
        learning_rate=_LEARNING_RATE,
        num_train_steps=num_steps,
        num_warmup_steps=int((num_steps or 0) * _WARMUP_PROPORTION),
    )
    metrics = ["accuracy"]
    if isinstance(task, PairsTask):
        metrics = None  # The task's metrics need all rows, not one batch.
    if getattr(task, "problem_type", None) == "regression":
        metrics = ["mean_absolute_error"]
    return {"optimizer": optimizer, "metrics": metrics}


def compute_loss(
    task: Task | None,
    outputs: Mapping[str, tf.Tensor],
    x: Mapping[str, tf.Tensor],
    y: Any,
    sample_weight: Any,
) -> tf.Tensor:
    """Returns the mean loss that the scripts train with, <float32>[], in graph.

    Args:
      task: The task; None for masked language models.
      outputs: The model's outputs.
      x: The model's inputs.
      y: The labels that `Preprocessor` returns, or the ids of masked tokens
        <int>[B, P], -1 at unused positions.
      sample_weight: The weight of each row or label, or None. As in Keras, the
        weighted sum is divided by the number of losses.
    """
    require_labels(y is not None)
    if isinstance(y, Mapping) and len(y) == 1:
        (y,) = y.values()
    weight = None
    if sample_weight is not None:
        # Keras makes a copy of `sample_weight` for each output: use the first.
        weight = tf.cast(tf.nest.flatten(sample_weight)[0], tf.float32)
    batch = {INPUT_MASK.name: tf.ones_like(x[INPUT_IDS.name]), **x}
    if task is not None:
        objective = TaskObjective(task, weight)
        batch |= _batch_labels(task, y)
        count = objective.count(batch)
    else:
        objective = PretrainingObjective(use_next_sentence=False)
        weights = tf.cast(tf.not_equal(y, NO_LABEL), tf.float32)
        batch["masked_lm_ids"] = tf.maximum(tf.cast(y, tf.int32), 0)
        count = objective.count({**batch, "masked_lm_weights": weights})
        weights = weights if weight is None else weigh(weights, weight)
        batch["masked_lm_weights"] = weights
    sums = objective.compute_sums(outputs, batch)
    return objective.normalize(sums, count)["loss"]


def _batch_labels(task: Task, y: Any) -> dict[str, tf.Tensor]:
    """Returns the labels as `Task.losses` reads them."""
    if isinstance(y, Mapping):
        return {name: tf.cast(y[name], tf.int32) for name in y}
    if isinstance(task, PairsTask):
        is_ids = y.dtype.is_integer
        return {TEXT_IDS if is_ids else SCORES: y}
    if isinstance(task, TaggingTask):
        return {
            LABEL_IDS: tf.maximum(tf.cast(y, tf.int32), 0),
            LABEL_WEIGHTS: tf.cast(tf.not_equal(y, NO_LABEL), tf.float32),
        }
    problem_type = getattr(task, "problem_type", None)
    if problem_type == "multi_label":
        return {LABEL_IDS: tf.cast(y, tf.float32)}
    is_score = problem_type == "regression"
    y = tf.cast(y, tf.float32 if is_score else tf.int32)
    return {LABEL_IDS: tf.reshape(y, [-1])}


def fit_few_shot(
    model: keras.Model,
    build_twin: Callable[..., keras.Model],
    x: Any,
    y: Any,
    options: Sequence[Any],
    others: Mapping[str, Any],
    calibrates: bool,
) -> keras.callbacks.History:
    """Trains a classifier as run/finetune_classifier.py --few_shot does.

    Args:
      model: The classifier.
      build_twin: Builds a model for embeddings, which is trained on pairs.
      x: The texts, as for `fit`.
      y: The labels of the texts, as for `fit`.
      options: Batch size, epochs, verbosity and callbacks of `fit`.
      others: All other arguments of `fit`, by name; each must be None.
      calibrates: Whether to calibrate the probabilities, by cross-validation.
    """
    # Import only for few-shot training, as the import takes a second.
    from bert_tf.finetuning import contrastive

    preprocessor = model.preprocessor
    task = preprocessor and preprocessor.has_task and preprocessor.task
    is_single = getattr(task, "problem_type", None) == "single_label"
    wrong = [name for name, value in others.items() if value is not None]
    if not is_single or model.lstms or task.doc_stride:
        wrong = ["another model", *wrong]
    if wrong:
        raise UserError(
            "fit(x, y, batch_size, epochs, verbose, callbacks, few_shot=True, "
            "calibrate) trains classifiers of bert_tf.load_model with one "
            "label for each text, which they read without windows. Received: "
            f"{', '.join(wrong)}, for {model.name}; score held-out texts by "
            "evaluate(), or use run/finetune_classifier.py --few_shot."
        )
    length = task.max_seq_length
    values = preprocessor.embedding_values | {"max_seq_length": length}
    embeddings = registry.build_task(values, None, length)
    task = contrastive.on_embeddings(task, embeddings, model.name)
    texts = raw_rows.to_rows(x)
    require_labels(y is not None)
    names = raw_rows.to_labels(y, len(texts))
    examples = preprocessor.examples(texts, names)
    label_values.check_few(examples, task.labels, "the list")
    inputs, label_ids = preprocessor(texts, names)
    with model.distribute_strategy.scope():
        pooled = task.pooling, task.normalize
        dtype = model.dtype_policy
        twin = build_twin(model.bert_config, *pooled, dtype=dtype)
    twin.preprocessor = type(preprocessor)(values, None, model.bert_config)
    weights = bert_model.named_variables(model)
    encoder = bert_model.named_variables(twin)
    for name, variable in encoder.items():
        variable.assign(weights[name])
    # Calibrate with embeddings from before training: afterwards they depend on
    # the labels, so held-out texts would look too easy.
    start = twin.predict(inputs, verbose=0)["embedding"]
    pairs = contrastive.draw_pairs(label_ids, _FEW_SHOT_SEED)
    history = twin.fit(
        {name: value[pairs] for name, value in inputs.items()},
        label_ids[pairs],
        *options,
    )
    contrastive.average(encoder, {name: weights[name] for name in encoder})
    vectors = twin.predict(inputs, verbose=0)["embedding"]
    head = contrastive.fit_head(vectors, label_ids)
    for name, value in {**encoder, **head}.items():
        weights[name].assign(value)
    model.pooling, model.normalize = pooled
    preprocessor.change_task(
        **dict.fromkeys(confidence.FIELDS),  # These fit only the old head.
        pooling=task.pooling,
        normalize=task.normalize,
    )
    if calibrates:
        preprocessor.fit_confidence(
            contrastive.out_of_fold_logits(start, label_ids), label_ids
        )
    # The compiled functions still use the old pooling: drop them.
    model.train_function = model.test_function = model.predict_function = None
    return history


def draw_masks(
    features: Mapping[str, tf.Tensor],
    vocabulary: Vocabulary,
    seed: tf.Tensor | int,
    step: tf.Tensor | int,
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Masks a batch of packed texts, in graph.

    The masks of a row depend only on its tokens, the seed <int64>[] and the
    step <int64>[], not on other rows or on padding. `features` are the model's
    inputs, <int32>[B, S] each.

    Returns:
      The features with masked `input_ids` and with `masked_lm_positions`
      <int32>[B, P], where P is 15% of S, for instance 19 of 128; and the labels
      <int32>[B, P], the ids of masked tokens, -1 at unused positions.
    """
    ids = tf.cast(features[INPUT_IDS.name], tf.int32)
    mask = features.get(INPUT_MASK.name)
    mask = tf.ones_like(ids) if mask is None else tf.cast(mask, tf.int32)
    places = tf.range(tf.shape(ids, tf.int64)[1])
    bits = stateless_random.random_bits(_ROW_SALT, places, ids)
    bits = tf.where(mask > 0, tf.bitcast(bits, tf.int64), 0)
    row_key = tf.reduce_sum(bits, axis=1)
    key = stateless_random.random_bits(seed, step, row_key)
    width = tf.cast(tf.shape(ids)[1], tf.float64)
    num_slots = tf.cast(tf.round(width * _MASKED_LM_PROB), tf.int32)
    blank = tf.zeros([tf.shape(ids)[0], tf.maximum(1, num_slots)], tf.int32)
    rule = DynamicMasking.from_vocabulary(vocabulary, _MASKED_LM_PROB)
    masked = rule.apply(
        {
            **features,
            INPUT_IDS.name: ids,
            INPUT_MASK.name: mask,
            "masked_lm_positions": blank,
            "masked_lm_ids": blank,
            "masked_lm_weights": tf.cast(blank, tf.float32),
        },
        tf.bitcast(key, tf.int64),
        seed=0,
    )
    weights = masked.pop("masked_lm_weights")
    labels = tf.where(weights > 0, masked.pop("masked_lm_ids"), NO_LABEL)
    return masked, labels


def skip_padding(inputs: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
    """Adds the indices of the tokens, so that the model skips padding."""
    mask = inputs.get(INPUT_MASK.name)
    if mask is None or (mask.shape[-1] or math.inf) <= _SHORT:
        return inputs
    rows = tf.cast(layouts.find_rows(tf.cast(mask, tf.int32)), tf.int32)
    found = layouts.find_tokens_of_parts(rows, tf.shape(rows)[0], step=1)
    return {**inputs, **found}


def check_counts(**counts: Any) -> None:
    """Raises `UserError` for a count that Keras would misread.

    None is allowed for all counts except `epochs`.
    """
    for name, value in counts.items():
        is_whole = isinstance(value, numbers.Integral)
        is_whole = is_whole and not isinstance(value, bool) and value > 0
        if not is_whole and (value is not None or name == "epochs"):
            raise UserError(
                f"Expected {name} to be a whole number, at least 1. Received: "
                f"{name}={value!r}."
            )


def check_callbacks(callbacks: Any) -> None:
    """Raises `UserError` for names and classes in place of callbacks."""
    for one in tf.nest.flatten(callbacks or ()):
        if isinstance(one, type) or not hasattr(one, "set_model"):
            raise UserError(
                "Expected objects of keras.callbacks, for instance keras."
                "callbacks.EarlyStopping(patience=2). Received: "
                f"{one!r:.80}."
            )


def require_labels(has_labels: bool) -> None:
    """Raises `UserError` if `has_labels` is false."""
    if not has_labels:
        raise UserError(
            "Expected labels: (x, y), or label_column= for a table. Received: "
            "none."
        )


def check_calibrate(preprocessor: Any, validation_data: Any) -> None:
    """Raises `UserError` if `fit` cannot calibrate the probabilities."""
    task = getattr(preprocessor, "trained_task", None)
    is_stream = isinstance(validation_data, (*STREAMS, type(None)))
    endless = tf.data.INFINITE_CARDINALITY
    is_stream |= getattr(validation_data, "cardinality", int)() == endless
    problem = getattr(task, "problem_type", task and task.kind)
    if is_stream or problem not in ("single_label", "multi_label"):
        raise UserError(
            "calibrate needs a classifier with labels, and validation_data of "
            "(texts, labels) or a tf.data.Dataset that ends. Received: a model "
            f"for {problem}, and validation_data={validation_data!r:.80}."
        )


def by_name(kind: str, value: Any) -> Any:
    """Returns Keras' object of a name; `kind` is a module, such as "losses"."""
    module = getattr(keras, kind)
    try:
        return module.get(value)
    except (TypeError, ValueError):
        hint = did_you_mean(str(value), [*dir(module), "accuracy"], "{!r}")
        raise UserError(
            f"Expected a name or an object of keras.{kind}. Received: "
            f"{value!r:.80}{hint}"
        ) from None


def losses_of_logits(loss: Any) -> Any:
    """Replaces names and functions in a `loss` by losses that read logits."""

    def replace(one):
        function = loss = by_name("losses", one)
        if isinstance(one, str):
            function = getattr(loss, "fn", loss)
        if function in _LOSSES:
            return _LOSSES[function](from_logits=True)
        if getattr(loss, "from_logits", True) is False:
            logging.warning(
                "The model's outputs are logits, and the loss takes them for "
                "probabilities; give %s(from_logits=True).",
                type(loss).__name__,
            )
        return one

    return tf.nest.map_structure(replace, loss)


def metrics_of_logits(
    metrics: Any, loss: Any, is_multi_label: bool | None
) -> Any:
    """Replaces metrics given by name by objects that read logits.

    Returns a list; for a dictionary, a dictionary of lists. The metrics are
    built here, otherwise TensorFlow would trace the first step twice.

    Args:
      metrics: As given to `compile`; None stays None.
      loss: As given to `compile`; None means the loss of the task.
      is_multi_label: Whether an example may have several labels; if None
        (unknown), the loss or Keras determines the accuracy.
    """
    if metrics is None:
        return None
    if isinstance(metrics, Mapping):
        return {
            name: metrics_of_logits(value, loss, is_multi_label)
            for name, value in metrics.items()
        }
    if loss is None and is_multi_label is not None:
        kinds = list(_ACCURACIES)
        loss = kinds[0 if is_multi_label else -1]()
    accuracies = [
        accuracy
        for kind, accuracy in _ACCURACIES.items()
        if all(isinstance(one, kind) for one in tf.nest.flatten(loss))
    ]

    def replace(metric):
        if not isinstance(metric, str):
            return metric
        found = metric
        if metric not in _ACCURACY:
            found = by_name("metrics", metric)
        elif accuracies:
            found = accuracies[0]()
        if not isinstance(found, keras.metrics.Metric):
            return metric
        if isinstance(found, keras.metrics.BinaryAccuracy):
            found = keras.metrics.BinaryAccuracy(threshold=0.0)
        if getattr(found, "from_logits", None) is False:
            found = type(found)(from_logits=True)
        found.name = metric  # Keras logs the metric by this name.
        return found

    metrics = metrics if isinstance(metrics, list | tuple) else [metrics]
    return [replace(metric) for metric in metrics]
