"""A fine-tuning trial: trains one model, with checkpoints and evaluations."""

import dataclasses
import functools
import itertools
import math
import os
import re
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import length_buckets
from bert_tf.distribute import batches as batches_lib
from bert_tf.distribute.batches import StepPlan
from bert_tf.errors import UserError
from bert_tf.features import INPUT_MASK
from bert_tf.finetuning import pretrained_model as pretrained_models
from bert_tf.finetuning.evaluate import DevSelection
from bert_tf.finetuning.evaluate import Evaluator
from bert_tf.finetuning.experiment import Experiment
from bert_tf.io import terminal
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import encoder
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks.task import Features
from bert_tf.tasks.task_files import DEV
from bert_tf.training import optimizer as optimizers
from bert_tf.training import resume as resume_checks
from bert_tf.training import unpad as unpadding
from bert_tf.training import xla
from bert_tf.training.checkpoints import Checkpoint
from bert_tf.training.checkpoints import CheckpointStore
from bert_tf.training.losses import Objective
from bert_tf.training.step import TrainingStep
from bert_tf.training.trainer import Trainer
from bert_tf.training.trainer import TrainerConfig
from bert_tf.training.xla import Compilation

BEST_FOLDER = "best"

# Without --iterations_per_loop, a trial logs metrics this many times.
_METRICS_LINES = 100
# Tokens per example and padding are estimated from this many batches.
_SAMPLED_BATCHES = 32

_LAYER = re.compile(r"bert/encoder/layer_(\d+)/")
_EMBEDDINGS = "bert/embeddings/"


class Trial(Trainer):
    """One trial, which resumes from its last checkpoint."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(
            experiment.config,
            experiment.output_dir,
            experiment.devices,
            experiment.preemption,
        )
        self._experiment = experiment
        self._best = CheckpointStore(
            os.path.join(self.output_dir, BEST_FOLDER),
            1,
            self.coordinator.is_chief,
        )

    def identify(self) -> Mapping[str, Any]:
        return self._experiment.identity

    def check_resume(self, checkpoint: Checkpoint | None) -> None:
        # `agree` waits until all workers have read; then the chief may write.
        self.coordinator.agree(
            {"the last checkpoint": checkpoint and checkpoint.describe()},
            f"view of {self.output_dir}, a folder that they share",
        )
        if checkpoint is not None:
            self._experiment.check_identity(
                checkpoint.metadata.get("identity"),
                f"{self.output_dir} (step {checkpoint.step})",
            )

    def build(
        self, checkpoint: Checkpoint | None
    ) -> tuple[TrainingStep, TrainerConfig]:
        """Reads the data; builds model, objective, optimizer and step."""
        config, devices = self._flags, self.devices
        experiment, trial = self._experiment, self._experiment.trial
        task, bert_config = experiment.task, experiment.stored.config
        strategy = devices.strategy

        num_examples, features = experiment.objective_source.read()
        num_rows = len(features)
        batch_size = task.rows_per_step(
            trial.train_batch_size, num_examples, num_rows
        )
        if batch_size != trial.train_batch_size:
            terminal.detail(
                "A step takes %d rows, which hold about --train_batch_size=%d "
                "examples.",
                batch_size,
                trial.train_batch_size,
            )
        # Round the steps down, as in the original (run_classifier.py:843-845).
        last_step = int(num_rows / batch_size * trial.num_train_epochs)
        if not last_step:
            raise UserError(
                f"{num_rows} rows, --train_batch_size="
                f"{trial.train_batch_size} and --num_train_epochs="
                f"{trial.num_train_epochs:g} make less than one step; set a "
                "smaller batch or more epochs."
            )
        self._selection = DevSelection(
            config, task, num_rows / batch_size, last_step
        )
        self._input = FinetuneInput(
            features,
            batch_size,
            trial.seed,
            last_step,
            task_prediction.allowed_lengths(
                features.lengths, task.max_seq_length, config.num_length_buckets
            ),
            xla.max_lengths(
                config.xla,
                devices.kind,
                devices.deterministic,
                config.num_length_buckets,
            ),
        )

        keras.utils.set_random_seed(trial.seed)
        if config.remat:
            encoder.keep_recomputation(len(strategy.extended.worker_devices))
        model = pretrained_models.build_model(
            experiment.stored,
            task,
            devices,
            config,
            remat=config.remat,
            **experiment.objective_source.model_arguments,
        )
        objective = experiment.objective_source.build_objective(model)
        variables = bert_model.named_variables(model)
        variables = variables | dict(objective.variables)
        specs = self._input.specs(0)
        trained = _choose_trained(
            variables,
            config.num_frozen_layers,
            _find_reached(strategy, model, objective, variables, specs),
        )

        with strategy.scope():
            optimizer = optimizers.build_optimizer(
                config.optimizer,
                trial.learning_rate,
                last_step,
                int(last_step * config.warmup_proportion),
                config.weight_decay_rate,
            )
            optimizer.build(list(trained.values()))
        optimizer.set_rate_factors(
            lambda path: _rate_factor(
                path, bert_config.num_hidden_layers, config.layer_decay
            )
        )
        row_shapes = self._input.row_shapes()
        plan = StepPlan(
            batch_size, strategy.num_replicas_in_sync, config.micro_batch_size
        )
        longest = math.prod(row_shapes[-1][INPUT_MASK.name])
        self._unpad = unpadding.choose(
            config.unpad,
            devices.kind,
            lambda: unpadding.pays(
                self._input.share_of_tokens(),
                plan.micro_batch_size * longest * bert_config.hidden_size,
            ),
            checkpoint and checkpoint.metadata["unpad"],
            task.reads_padding,
        )
        step = TrainingStep(
            strategy,
            model,
            objective,
            optimizer,
            plan,
            devices.precision.needs_loss_scale,
            Compilation(
                config.xla, devices.kind, row_shapes, devices.deterministic
            ),
            devices.all_reduce_dtype,
        )
        return step, TrainerConfig(
            last_step=last_step,
            metrics_every=config.iterations_per_loop
            or max(1, last_step // _METRICS_LINES),
            examples_per_step=batch_size,
            tokens_per_example=self._input.tokens_per_example(),
            description="fine-tuning",
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restores the training state and the evaluations on dev."""
        logging.info(
            "Resumed at step %d: %s.", checkpoint.step, checkpoint.prefix
        )
        super().restore(checkpoint)
        self._selection.evaluations = list(checkpoint.metadata["evaluations"])

    def metadata(self) -> dict[str, Any]:
        return {
            "identity": self.identity,
            "devices": resume_checks.describe_devices(self.devices),
            "evaluations": self._selection.evaluations,
            "unpad": self._unpad,
        }

    @property
    def chosen_step(self) -> int:
        """The step of the final model, known once training has finished."""
        if self._flags.selects_evaluation:
            return self._selection.best_step
        return self.step

    @property
    def evaluations(self) -> list[dict[str, float]]:
        """The dev metrics during training, each with its `global_step`."""
        return [
            {"global_step": values["step"]}
            | {name: x for name, x in values.items() if name != "step"}
            for values in self._selection.evaluations
            if len(values) > 1  # A dev set without labels has no metrics.
        ]

    def train(self) -> None:
        """Trains to the end, and gives the model the selected weights."""
        self.store.clean()
        try:
            while True:
                # If a run stopped during an evaluation, repeat the evaluation.
                if self._selection.is_due(self.step):
                    self._evaluate()
                if self.step >= self.last_step or self._selection.should_stop():
                    break
                self.run_steps(
                    self._read_from,
                    self._input.read,
                    self._selection.next_stop(self.step),
                )
            self.checkpoints.wait()
        finally:
            self.close_bar()
        if self._flags.selects_evaluation:
            self._restore_best()
        self._experiment.objective_source.finish(self.model, self.devices)

    def _read_from(self, step: int) -> Iterator[dict[str, tf.Tensor]]:
        """Returns the batches from `step`, split by the current plan."""
        plan, transform = self.training_step.plan, None
        if self._unpad:
            shapes = [x[INPUT_MASK.name] for x in self._input.row_shapes()]
            transform = unpadding.token_finder(plan, shapes[-1], shapes)
        return batches_lib.distribute_batches(
            self.devices.strategy,
            functools.partial(self._input.dataset, step),
            plan,
            transform=transform,
        )

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        """The evaluator of the model."""
        data = self._experiment.reader
        return Evaluator(self.model, data, self._flags, self.devices)

    def release(self) -> None:
        """Frees the memory of weights and optimizer slots; ends the trial.

        TensorFlow never frees a graph's gradient functions or their variables,
        so the variables are assigned empty tensors.
        """
        for variable in [
            *self.variables.values(),
            *self.training_step.optimizer.variables,
        ]:
            for part in self.devices.strategy.experimental_local_results(
                variable.value
            ):
                tf.raw_ops.AssignVariableOp(
                    resource=part.handle, value=tf.zeros([0], part.dtype)
                )

    # === Evaluations during training ===

    def _evaluate(self) -> None:
        """Scores dev and saves a checkpoint that includes the scores."""
        try:
            metrics = self._score_dev()
            self.write_summaries("eval", metrics)
        except BaseException:
            # Also save after an error, usually SIGTERM: a rerun resumes here.
            with self.coordinator.finishing():
                if self.checkpoints.step != self.step:
                    self.checkpoints.save(self.step)
                self.checkpoints.wait()
            raise
        self.checkpoints.save(self.step)

    def _score_dev(self) -> dict[str, float]:
        """Scores dev; saves the weights if they are the best so far."""
        task = self._experiment.task
        (split, *_) = task.splits(DEV)
        evaluated = self.evaluator.evaluate(split, task, select_threshold=True)
        # All workers use the chief's metrics, so they select the same step.
        metrics = self.coordinator.from_chief(evaluated.metrics)
        if metrics:
            self._dev_score = f"{task.metric} {metrics[task.metric]:.3f}"
        values = {"step": self.step} | metrics
        if self._flags.selects_evaluation and self._selection.is_best(values):
            metadata = {"evaluation": values}
            if not self.coordinator.from_chief(
                self._best.save(self.step, self.weights(), metadata)
            ):
                raise UserError(
                    "The best model so far could not be written to "
                    f"{self.output_dir}; free disk space and rerun the same "
                    "command to resume."
                )
        self._selection.evaluations.append(values)
        return metrics

    def _restore_best(self) -> None:
        best = self._best.restore_latest()
        best_step = self._selection.best_step
        if best is None or best.step != best_step:
            raise UserError(
                f"The best model of {self.output_dir}, from step {best_step}, "
                f"is missing in {BEST_FOLDER}/; remove --output_dir to start "
                "over."
            )
        variables = bert_model.named_variables(self.model)
        for name, variable in variables.items():
            variable.assign(best.tensors[name])
        logging.info(
            "The final model is from step %d, the best on dev.", best.step
        )


def _layer_number(name: str) -> int | None:
    """Returns a variable's depth from its canonical name.

    The depth is 0 for embeddings, n + 1 for layer_n, None for pooler and heads.
    """
    if match := _LAYER.match(name):
        return int(match[1]) + 1
    return 0 if name.startswith(_EMBEDDINGS) else None


def _choose_trained(
    variables: Mapping[str, keras.Variable],
    num_frozen_layers: int,
    reached: Collection[str],
) -> dict[str, keras.Variable]:
    """Returns the variables to train, and logs the others.

    As in the original, only variables that affect the loss (`reached`) are
    trained. If `num_frozen_layers` is above 0, the embeddings and that number
    of lowest layers are frozen.
    """
    numbers = {name: _layer_number(name) for name in variables}
    frozen = [
        name
        for name, number in numbers.items()
        if number is not None and number <= num_frozen_layers > 0
    ]
    unreached = [name for name in variables if name not in reached]
    for why, names in (
        ("frozen", frozen),
        ("not reached by the loss", unreached),
    ):
        if names:
            terminal.detail(
                "%d variables are not trained, as they are %s: %s%s.",
                len(names),
                why,
                ", ".join(names[:4]),
                ", ..." if len(names) > 4 else "",
            )
    left_out = {*frozen, *unreached}
    return {x: y for x, y in variables.items() if x not in left_out}


def _find_reached(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    objective: Objective,
    variables: Mapping[str, keras.Variable],
    specs: Mapping[str, tf.TensorSpec],
) -> set[str]:
    """Returns the names of the variables that the loss depends on.

    Traces a step without running it; to save time, all layers share a graph.
    The training steps reuse the functions of `fused` that are traced here.
    """
    reached: set[str] = set()

    def step(rows: dict[str, tf.Tensor]) -> None:
        rows = objective.add_targets(rows)
        with tf.GradientTape() as tape:
            outputs = model(
                {name: rows[name] for name in objective.inputs},
                training=True,
                dropout_seeds=tf.cast(rows["example_index"], tf.int32),
            )
            sums = objective.compute_sums(outputs, rows)
            loss = objective.normalize(sums, objective.count(rows))["loss"]
        gradients = tape.gradient(loss, [v.value for v in variables.values()])
        pairs = zip(variables, gradients, strict=True)
        reached.update(name for name, x in pairs if x is not None)

    model.bert.encoder.shares_graph = True
    tf.function(
        lambda rows: strategy.run(step, (rows,)), autograph=False
    ).get_concrete_function(specs)
    model.bert.encoder.shares_graph = False
    return reached


def _rate_factor(path: str, num_layers: int, layer_decay: float) -> float:
    """Returns the factor of a variable's learning rate (--layer_decay).

    Pooler and heads learn at the full rate, and each layer at `layer_decay`
    times the rate of the layer above. With 12 layers, layer_11 has the factor
    layer_decay, layer_10 has layer_decay**2, and embeddings layer_decay**13.
    `path` is the model's name, "/" and the variable's canonical name.
    """
    _, _, name = path.partition("/")
    number = _layer_number(name)
    if number is None:
        return 1.0
    return layer_decay ** (num_layers + 1 - number)


# === Batches ===


class FinetuneInput:
    """The training batches of a trial, each padded to one of `lengths`.

    `lengths` ascend. If `most_lengths` is not 0, it limits the number of
    lengths used. A limit adds padding, but fewer programs are compiled. A limit
    of 2 may pad batches of lengths 24, 40 and 64 to the lengths 40, 40 and 64.
    """

    def __init__(
        self,
        features: Features,
        batch_size: int,
        seed: int,
        num_steps: int,
        lengths: Sequence[int],
        most_lengths: int = 0,
    ) -> None:
        self._features = features
        self._batch_size = batch_size
        self._seed = seed
        self._has_one_length = len(lengths) == 1
        self._plan = length_buckets.training_batches(
            features.lengths, batch_size, seed, num_steps, lengths
        )
        if most_lengths:
            planned = np.array([batch.length for batch in self._plan])
            few = length_buckets.fewest_padding(
                planned, lengths[-1], most_lengths
            )
            padded = [int(few[x]) for x in np.searchsorted(few, planned)]
            self._plan = [
                dataclasses.replace(batch, length=length)
                for batch, length in zip(self._plan, padded, strict=True)
            ]

    def read(
        self, step: int, rows: slice = slice(None)
    ) -> Mapping[str, np.ndarray]:
        """Returns the batch of a step, counted from 0, or some of its rows.

        The batch has the features of `Features.batch` and `example_index`
        <int64>[batch size], which counts the examples of all steps.
        """
        # Prefetching asks for steps after the last one: repeat `_plan`.
        planned = self._plan[step % len(self._plan)]
        batch = self._features.batch(planned.indices[rows], planned.length)
        first = step * self._batch_size
        index = np.arange(first, first + self._batch_size, dtype=np.int64)
        return batch | {"example_index": index[rows]}

    @functools.cached_property
    def _sampled_masks(self) -> list[np.ndarray]:
        steps = np.linspace(0, len(self._plan) - 1, _SAMPLED_BATCHES, dtype=int)
        return [self.read(step)[INPUT_MASK.name] for step in steps]

    def tokens_per_example(self) -> float:
        """Estimates the mean number of tokens in all choices of an example."""
        tokens = [mask.sum() for mask in self._sampled_masks]
        return float(np.mean(tokens) / self._batch_size)

    def share_of_tokens(self) -> float:
        """Returns the share of tokens among the positions of some batches."""
        masks = self._sampled_masks
        return float(sum(x.sum() for x in masks) / sum(x.size for x in masks))

    def row_shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """Returns the row shapes of each batch length, by feature name."""
        examples = {batch.length: batch.indices[:1] for batch in self._plan}
        rows = [
            self._features.batch(examples[length], length)
            for length in sorted(examples)
        ]
        return [{name: x.shape[1:] for name, x in row.items()} for row in rows]

    def dataset(
        self, step: int, first_row: int = 0, num_rows: int | None = None
    ) -> tf.data.Dataset:
        """Returns endless batches from `step` on, with `dropout_seeds`."""
        end = self._batch_size if num_rows is None else first_row + num_rows
        rows = slice(first_row, end)

        def generate() -> Iterator[Mapping[str, np.ndarray]]:
            for number in itertools.count(step):
                yield self.read(number, rows)

        dataset = tf.data.Dataset.from_generator(
            generate,
            output_signature=self.specs(step, rows),
        )
        return batches_lib.add_dropout_seeds(dataset, self._seed)

    def specs(
        self, step: int, rows: slice = slice(None)
    ) -> dict[str, tf.TensorSpec]:
        """Returns the shapes and dtypes of the batch of `read`, by feature."""
        specs = {}
        for name, value in self.read(step, rows).items():
            shape = value.shape
            if not self._has_one_length:
                shape = [shape[0], *[None] * (value.ndim - 1)]
            specs[name] = tf.TensorSpec(shape, value.dtype)
        return specs
