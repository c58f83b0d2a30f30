"""Trains embeddings, and classifiers of embeddings for few labeled texts.

Few-shot training follows SetFit (Tunstall et al., 2022,
https://arxiv.org/abs/2209.11055): embeddings learn from pairs of texts with the
same label; texts of other labels in the same step are the negatives. Logistic
regression on the embeddings then becomes the head of an ordinary classifier.
The encoder gets the mean of its weights before and after training, which
generalizes better (Wortsman et al., 2022, https://arxiv.org/abs/2109.01903).

Shapes:
  N: number of texts.
  H: number of values in an embedding.
  L: number of labels.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from sklearn import linear_model
from sklearn import model_selection
from sklearn.metrics import pairwise

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.finetuning import experiment as experiments
from bert_tf.finetuning import pretrained_model as pretrained_models
from bert_tf.finetuning import run as finetuning
from bert_tf.finetuning.evaluate import Metrics
from bert_tf.finetuning.evaluate import SplitReader
from bert_tf.finetuning.experiment import ObjectiveSource
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.modeling import bert as bert_model
from bert_tf.tasks import confidence
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks import registry
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.embeddings.examples import PairFiles
from bert_tf.tasks.embeddings.task import EMBEDDING
from bert_tf.tasks.embeddings.task import TEXT_IDS
from bert_tf.tasks.embeddings.task import EmbeddingsTask
from bert_tf.tasks.embeddings.task import PairsTask
from bert_tf.tasks.packed_rows import LABEL_IDS
from bert_tf.tasks.packed_rows import GroupedRows
from bert_tf.tasks.task_files import TRAIN
from bert_tf.training import preemption as preemptions
from bert_tf.training.losses import TaskObjective

# An epoch has at least this many pairs, so that few texts give many steps.
_LEAST_PAIRS = 256
# Weak regularization, because embeddings of length 1 need large weights.
_INVERSE_PENALTY = 10.0
_MAX_ITERATIONS = 1000
_FOLDS = 10
# Texts are repeats (maybe in another case) if 1 - their cosine is below this.
_SAME = 1e-5
_ROWS_AT_ONCE = 32


def train_embeddings(
    config: FinetuneConfig, task_files: PairFiles
) -> dict[str, Metrics]:
    """Trains, evaluates and writes embeddings, with the model's pooling."""
    with preemptions.prepare(config) as place:
        stored = pretrained_models.read(config)
        base = registry.build_embeddings(stored)
        length = config.max_seq_length or base.max_seq_length
        task = PairsTask(
            **task_files.arguments(),
            pooling=base.pooling,
            normalize=base.normalize,
            max_seq_length=length,
        )
        config = dataclasses.replace(config, max_seq_length=length)
        return finetuning.run_experiment(
            experiments.prepare(config, task, stored, *place)
        )


def train_few_shot(
    config: FinetuneConfig, build_task: finetuning.BuildTask
) -> dict[str, Metrics]:
    """Trains, evaluates and writes a classifier for few labeled texts."""
    with preemptions.prepare(config) as place:
        stored = pretrained_models.read(config)
        embeddings = registry.build_embeddings(stored)
        task = on_embeddings(build_task(config, None), embeddings, stored.path)
        experiment = experiments.prepare(config, task, stored, *place)
        source = FewLabels(experiment.reader, config, stored)
        return finetuning.run_experiment(
            dataclasses.replace(experiment, objective_source=source)
        )


def on_embeddings(
    task: ClassificationTask, embeddings: EmbeddingsTask, source: str
) -> ClassificationTask:
    """Returns the task with a head that reads the vectors of `embeddings`.

    Raises:
      UserError: If the model in `source` joins poolings, such as "cls+mean".
    """
    pooling = embeddings.pooling
    if "+" in pooling:
        raise UserError(
            "Few-shot training reads one vector of the model's width for each "
            f"text. Received: {source}, whose pooling is {pooling!r}; give "
            "another model."
        )
    return dataclasses.replace(
        task, pooling=pooling, normalize=embeddings.normalize
    )


class FewLabels(ObjectiveSource):
    """Few-shot training: trains on pairs, averages weights and fits the head.

    Training starts from the model `stored`; pairs are drawn with --seed.
    """

    def __init__(
        self, reader: SplitReader, config: FinetuneConfig, stored: StoredModel
    ) -> None:
        super().__init__(reader)
        self._config = config
        self._stored = stored
        # Out-of-fold logits of the training texts; `tune` calibrates with them.
        self._logits: np.ndarray | None = None

    def read(self) -> tuple[int, GroupedRows]:
        _, rows = self._reader.read(TRAIN)
        labels = rows.targets[LABEL_IDS]
        pairs = draw_pairs(labels, self._config.seed)
        return len(pairs), GroupedRows(rows, pairs, {TEXT_IDS: labels[pairs]})

    def build_objective(self, model: keras.Model) -> TaskObjective:
        return TaskObjective(PairsTask())

    def finish(self, model: keras.Model, devices: Devices) -> None:
        task = self._reader.task
        with devices.strategy.scope():
            start = checkpoint_loading.build_model(
                self._stored,
                "embeddings",
                pooling=task.pooling,
                normalize=task.normalize,
            )
        fits = task.calibrates or task.reject_precision
        if fits and not self._config.do_eval:
            self._logits = out_of_fold_logits(*self._texts(start, devices))
        variables = bert_model.named_variables(model)
        average(variables, bert_model.named_variables(start))
        head = fit_head(*self._texts(model, devices))
        for name, value in head.items():
            variables[name].assign(value)

    def _texts(
        self, model: keras.Model, devices: Devices
    ) -> tuple[np.ndarray, np.ndarray, Sequence[float] | None]:
        """Returns the arguments of `fit_head` for the training texts."""
        _, rows = self._reader.read(TRAIN)
        task = self._reader.task
        computer = task_prediction.OutputComputer(
            model, EmbeddingsTask(), _ROWS_AT_ONCE, devices.strategy
        )
        computed = computer.compute(
            dataclasses.replace(rows, targets={}),
            task_prediction.allowed_lengths(rows.lengths, task.max_seq_length),
        )
        embeddings = np.stack(computed.outputs[EMBEDDING])
        return embeddings, rows.targets[LABEL_IDS], task.class_weights

    def tune(self, task: ClassificationTask) -> ClassificationTask:
        """Returns the task, calibrated if there are out-of-fold logits.

        Without --reject_precision, keeps a stored threshold and temperature.
        """
        is_fitted = task.reject_below and not task.reject_precision
        if self._logits is None or is_fitted and task.temperature:
            return task
        examples, _ = self._reader.read(TRAIN)
        outputs = {"logits": tf.constant(self._logits)}
        tuned = task.select_threshold(
            examples, lambda task: task.decode(outputs)["probabilities"]
        )
        values = tuned.to_json()
        chosen = {x: values[x] for x in confidence.FIELDS if x in values}
        logging.info("Held-out training texts gave task.json %s.", chosen)
        return tuned


def draw_pairs(label_ids: np.ndarray, seed: int) -> np.ndarray:
    """Returns pairs of texts with equal labels, as indices <int64>[pairs, 2].

    A round pairs every text with another text of its label. There are enough
    rounds for at least 256 pairs, such as 32 rounds for 8 texts. With label_ids
    [0, 0, 1, 1, 1] a round may be [[0, 1], [1, 0], [4, 3], [2, 4], [3, 2]].
    Each label in `label_ids` <int32>[N] needs at least two texts.
    """
    draw = np.random.default_rng(seed)
    count = -(-_LEAST_PAIRS // len(label_ids))
    pairs = []
    for label in np.tile(np.unique(label_ids), count):
        own = draw.permutation(np.flatnonzero(label_ids == label))
        others = np.roll(own, draw.integers(1, len(own)))
        pairs.append(np.stack([own, others], axis=1))
    return np.concatenate(pairs)


def average(
    trained: Mapping[str, keras.Variable], start: Mapping[str, keras.Variable]
) -> None:
    """Averages each trained weight with the same weight in `start`."""
    for name, variable in start.items():
        trained[name].assign((trained[name] + variable) / 2)


def fit_head(
    embeddings: np.ndarray,
    label_ids: np.ndarray,
    class_weights: Sequence[float] | None = None,
) -> dict[str, np.ndarray]:
    """Returns the head's weights by name: logistic regression on embeddings.

    `embeddings` are <float32>[N, H], and `label_ids` <int32>[N], in which every
    label must occur. `class_weights` has the weight of each label.
    """
    regression = _regression(class_weights)
    regression.fit(np.float64(embeddings), label_ids)
    kernel, bias = regression.coef_, regression.intercept_
    if len(kernel) == 1:  # For two labels sklearn fits one logit: make two.
        kernel = np.concatenate([-kernel, kernel]) / 2
        bias = np.concatenate([-bias, bias]) / 2
    return {
        "output_weights": kernel.astype(np.float32),
        "output_bias": bias.astype(np.float32),
    }


def out_of_fold_logits(
    embeddings: np.ndarray,
    label_ids: np.ndarray,
    class_weights: Sequence[float] | None = None,
) -> np.ndarray:
    """Returns <float64>[N, L]: each text's logits from a head not fitted to it.

    Takes the arguments of `fit_head`, with embeddings from before training:
    trained embeddings, or a head that saw the text, give overconfident logits.
    So a repeated text is only used once, and its repeats get the same logits.
    """
    is_same = pairwise.cosine_similarity(embeddings) > 1 - _SAME
    first, repeats = np.unique(is_same.argmax(-1), return_inverse=True)
    if np.bincount(label_ids[first]).min() < 2:  # Too few: keep repeats.
        first = repeats = np.arange(len(label_ids))
    embeddings, label_ids = np.float64(embeddings[first]), label_ids[first]
    folds = min(_FOLDS, np.bincount(label_ids).min())
    logits = model_selection.cross_val_predict(
        _regression(class_weights),
        embeddings,
        label_ids,
        cv=model_selection.StratifiedKFold(folds, shuffle=True, random_state=0),
        method="decision_function",
    )
    if logits.ndim == 1:  # For two labels sklearn has one logit: make two.
        logits = np.stack([-logits, logits], axis=-1) / 2
    return logits[repeats]


def _regression(
    class_weights: Sequence[float] | None,
) -> linear_model.LogisticRegression:
    return linear_model.LogisticRegression(
        C=_INVERSE_PENALTY,
        class_weight=class_weights and dict(enumerate(class_weights)),
        max_iter=_MAX_ITERATIONS,
    )
