"""Pretraining, from the flags to the model directory."""

import dataclasses
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import files
from bert_tf import keras_backend
from bert_tf import model_card
from bert_tf import model_directory
from bert_tf.config import BertConfig
from bert_tf.data import manifest as manifests
from bert_tf.errors import UserError
from bert_tf.interop import tf1_checkpoint
from bert_tf.modeling import model as bert_model
from bert_tf.run_config import PretrainConfig
from bert_tf.training import checkpoints
from bert_tf.training import distribution
from bert_tf.training import evaluate
from bert_tf.training import learning_curves
from bert_tf.training import loop as training_loop
from bert_tf.training import memory
from bert_tf.training import metrics_log
from bert_tf.training import optimization
from bert_tf.training import precision as precisions
from bert_tf.training import run_identity
from bert_tf.training import training_data
from bert_tf.training import training_run

MODEL_FOLDER = "model"
EVAL_RESULTS_FILE = "eval_results.txt"
LEARNING_CURVES_FILE = "learning_curves.png"

_MEANINGLESS_FLAGS = ("master", "num_tpu_cores", "tpu_zone", "gcp_project")
# What the next-sentence task alone trains.
_NEXT_SENTENCE_PARTS = ("bert/pooler/", "cls/seq_relationship/")


def train_and_evaluate(config: PretrainConfig) -> None:
    """Does what run/pretrain.py is asked for.

    Raises:
      UserError: For whatever the user can mend.
    """
    keras_backend.require_tensorflow()
    _Pretraining(config).run()


class _Pretraining:
    """One process of a pretraining run."""

    def __init__(self, config: PretrainConfig):
        self.config = config
        _warn_of_meaningless_flags(config)
        self.bert_config = _read_model_config(config)
        self.record_files = training_data.find_records(config)
        self.manifest = manifests.find(self.record_files)
        self.store = checkpoints.CheckpointStore(
            config.output_dir, config.keep_checkpoint_max
        )
        checkpoint = self.store.restore_latest()
        self._say_where_it_starts(checkpoint)
        self.text = training_data.find_text_settings(
            config, self.bert_config, self.manifest
        )
        self.identity = run_identity.describe(
            config,
            self.bert_config,
            self.record_files,
            self.manifest,
            self.text.vocabulary.hash if self.text else None,
        )
        self.metadata: dict[str, Any] = {}
        if checkpoint is not None:
            self.metadata = dict(checkpoint.metadata)
            run_identity.check_continuation(
                self.metadata,
                self.identity,
                checkpoint.step,
                config.allow_changed_data,
            )
        self._prepare_devices()
        self._build()
        self._fill(checkpoint)

    @property
    def step(self) -> int:
        """Steps done."""
        return int(self.optimizer.iterations.numpy())

    @property
    def last_step(self) -> int:
        """The step that this process stops at."""
        total = self.config.num_train_steps
        return min(self.config.stop_at_step or total, total)

    def run(self) -> None:
        """Trains, evaluates and writes what is left of it."""
        config = self.config
        first_step = self.step
        run = None
        if config.do_train:
            run = self._train()
        results = None
        if config.do_eval:
            results = self._evaluate()
            if run is not None:
                run.write_summaries("eval", results)
        if config.do_train:
            self._draw_learning_curves(results)
            if self.step > first_step or not self._model_is_written():
                self._write_model(results)

    def _say_where_it_starts(self, checkpoint) -> None:
        output_dir = self.config.output_dir
        if checkpoint is not None:
            logging.info(
                "Resumed at step %d: %s.", checkpoint.step, checkpoint.prefix
            )
        elif self.config.init_checkpoint:
            logging.info(
                "Initialised from the checkpoint %s; %s holds none.",
                self.config.init_checkpoint,
                output_dir,
            )
        else:
            logging.info("A fresh start; %s holds no checkpoint.", output_dir)

    def _prepare_devices(self) -> None:
        config = self.config
        name = config.distribution_strategy
        self.strategy = distribution.build_strategy(
            "tpu" if config.use_tpu else name,
            config.num_gpus,
            config.tpu or config.tpu_name,
        )
        # Else the order of additions may differ from one run to the next.
        tf.config.experimental.enable_op_determinism()
        self.device = distribution.device_type(self.strategy)
        self.precision = precisions.resolve(config.mixed_precision, self.device)
        logging.info(
            "Strategy %s with %d %s; precision %s (%s).",
            type(self.strategy).__name__,
            self.strategy.num_replicas_in_sync,
            self.device,
            self.precision.name,
            self.precision.reason,
        )

    def _build(self) -> None:
        """Makes model, optimizer and loop."""
        config = self.config
        keras.utils.set_random_seed(config.seed)
        with self.strategy.scope():
            self.model = bert_model.BertForPretraining(
                self.bert_config,
                # TPUs compile the whole step by themselves.
                fuse=self.device != "TPU",
                dtype=self.precision.policy,
            )
            self.variables = bert_model.named_variables(self.model)
            self.optimizer = optimization.build_optimizer(
                config.optimizer,
                config.learning_rate,
                config.num_train_steps,
                config.num_warmup_steps,
                config.weight_decay_rate,
            )
            self.optimizer.build(self._trained_variables())
        num_weights = sum(v.value.shape.num_elements() for v in self.variables.values())
        logging.info("The model has %s parameters.", f"{num_weights:,}")
        self.loop = training_loop.TrainingLoop(
            self.strategy,
            self.model,
            self.optimizer,
            self._plan(num_weights),
            config.use_next_sentence,
            self.precision.needs_loss_scale,
        )

    def _trained_variables(self) -> list[keras.Variable]:
        """Returns the variables that the losses reach."""
        left_out = ()
        if not self.config.use_next_sentence:
            left_out = _NEXT_SENTENCE_PARTS
            logging.info(
                "Without the next-sentence loss %s keep their first values.",
                " and ".join(left_out),
            )
        return [
            variable
            for name, variable in self.variables.items()
            if not name.startswith(left_out)
        ]

    def _plan(self, num_weights: int) -> training_loop.StepPlan:
        """Spreads a step over replicas and micro-batches that fit."""
        config = self.config
        replicas = self.strategy.num_replicas_in_sync
        batch_size = config.train_batch_size
        step_size = batch_size * config.gradient_accumulation_steps
        # An accumulated batch is never computed at once.
        whole = training_loop.StepPlan(batch_size, replicas).per_replica
        needed = memory.estimate(
            self.bert_config,
            num_weights,
            config.max_seq_length,
            config.max_predictions_per_seq,
            activation_bytes=4 if self.precision.name == "float32" else 2,
        )
        there = memory.available_bytes(self.device)
        if config.micro_batch_size == "auto":
            micro = self._choose_micro_batch(needed, whole, there)
        else:
            micro = int(config.micro_batch_size) or whole
        micro = min(micro, whole)
        logging.info(
            "Memory of a step: about %.1f GB with %d sequences at once on a "
            "device; free: %s.",
            needed.total(micro) / 1e9,
            micro,
            "unknown" if there is None else f"{there / 1e9:.1f} GB",
        )
        self.micro_batch_size = micro
        return training_loop.StepPlan(step_size, replicas, micro)

    def _choose_micro_batch(self, needed, whole: int, there: int | None) -> int:
        chosen = self.metadata.get("micro_batch_size", 0)
        # The same as before, as another gives other rounding errors.
        if chosen and whole % chosen == 0 and there is not None:
            if needed.total(chosen) <= there:
                return chosen
        if there is None:
            return whole
        return needed.largest_micro_batch(whole, there)

    def _fill(self, checkpoint) -> None:
        """Sets the first weights: of this run, of another one, or new ones."""
        config = self.config
        if checkpoint is not None:
            checkpoints.assign_state(
                self.variables,
                self.optimizer,
                checkpoint.tensors,
                checkpoint.prefix,
            )
            training_loop.write_loss_scale(self.loop, self.metadata)
        elif config.init_checkpoint:
            path = config.init_checkpoint
            if model_directory.is_model_directory(path):
                tensors = model_directory.read(path).weights
            else:
                tensors = tf1_checkpoint.read(path)
            report = tf1_checkpoint.load_into(self.model, tensors, path)
            logging.info("%s: %s.", path, report)

    def _train(self) -> training_run.TrainingRun:
        config = self.config
        self.store.clean()
        source = training_data.build_input(
            config,
            self.record_files,
            self.text.vocabulary if self.text else None,
        )
        batch_size = source.batch_size
        logging.info(
            "%d records; a step has %d of them.",
            source.num_records,
            batch_size,
        )
        run = training_run.TrainingRun(
            self.loop,
            training_run.Course(
                last_step=self.last_step,
                metrics_every=config.iterations_per_loop,
                save_every=config.save_checkpoints_steps,
                examples_per_step=batch_size,
                tokens_per_example=config.max_seq_length,
            ),
            config.output_dir,
            self._save,
        )
        if self.step >= self.last_step:
            logging.info("All %d steps are done already.", self.last_step)
            return run

        def read_batch(step: int) -> dict[str, np.ndarray]:
            dataset = source.dataset(step * batch_size)
            return next(dataset.as_numpy_iterator())

        dataset = source.dataset(self.step * batch_size)
        dataset = training_data.check_ids(dataset, self.bert_config.vocab_size)
        dataset = training_loop.add_dropout_seeds(dataset, config.seed)
        try:
            run.train(
                distribution.distribute(self.strategy, dataset, batch_size),
                read_batch,
            )
        except tf.errors.OpError as error:
            explanation = source.explain(error)
            if explanation is None:
                raise
            raise explanation from error
        return run

    def _save(self, step: int) -> bool:
        metadata = self.identity | {
            "micro_batch_size": self.micro_batch_size,
            **training_loop.read_loss_scale(self.loop),
        }
        tensors = checkpoints.read_state(self.variables, self.optimizer)
        return self.store.save(step, tensors, metadata)

    def _evaluate(self) -> dict[str, float]:
        config = self.config
        vocabulary_hash = self.identity["vocabulary_hash"]
        source = training_data.build_evaluation_input(config, vocabulary_hash)
        if not self.step and not config.init_checkpoint:
            logging.info("The model to evaluate is new and has learnt nothing.")
        results = evaluate.evaluate(
            self.model,
            source.evaluation_dataset(),
            self.step,
            config.max_eval_steps,
            self.strategy,
            config.use_next_sentence,
        )
        path = os.path.join(config.output_dir, EVAL_RESULTS_FILE)
        evaluate.write_results(path, results)
        logging.info("Evaluation: %s", metrics_log.describe(results))
        return results

    def _draw_learning_curves(self, results: dict[str, float] | None) -> None:
        folder = self.config.output_dir
        try:
            learning_curves.draw(
                os.path.join(folder, LEARNING_CURVES_FILE),
                metrics_log.read(
                    os.path.join(folder, metrics_log.METRICS_FILE)
                ),
                [results] if results else [],
            )
        except (OSError, tf.errors.OpError) as error:
            logging.error("The learning curves were not written: %s.", error)

    def _model_is_written(self) -> bool:
        path = os.path.join(self.config.output_dir, MODEL_FOLDER)
        if not model_directory.is_model_directory(path):
            return False
        task = files.read_json(os.path.join(path, model_directory.TASK_FILE))
        return task.get("global_step") == self.step

    def _write_model(self, results: dict[str, float] | None) -> None:
        """Writes the model directory, without which a run has failed."""
        path = os.path.join(self.config.output_dir, MODEL_FOLDER)
        try:
            model_directory.write(
                path,
                self.bert_config,
                {name: v.numpy() for name, v in self.variables.items()},
                self.text.vocabulary if self.text else None,
                self.text.tokenizer_settings() if self.text else None,
                self._describe_task(),
                self._write_card(results or {}),
            )
        except (OSError, tf.errors.OpError) as error:
            raise UserError(
                f"The trained model could not be written to {path} ({error}); "
                "make room and start the same command again."
            ) from error
        logging.info("The model is in %s.", path)

    def _describe_task(self) -> dict[str, Any]:
        return {
            "kind": "pretraining",
            "max_seq_length": self.config.max_seq_length,
            "max_predictions_per_seq": self.config.max_predictions_per_seq,
            "use_next_sentence": self.config.use_next_sentence,
            "global_step": self.step,
        }

    def _write_card(self, results: dict[str, float]) -> str:
        flags = dataclasses.asdict(self.config)
        data: dict[str, Any] = {"files": ", ".join(self.record_files)}
        if self.manifest:
            data["manifest"] = self.manifest.source
            data["documents"] = self.manifest.num_documents
        return model_card.build(
            "A pretrained BERT",
            "A BERT with its pretraining heads, made by run/pretrain.py of "
            f"bert_tf in {self.step} steps.",
            {
                "Training data": data,
                "Flags": {k: v for k, v in flags.items() if v is not None},
                "Metrics": results,
            },
            'python run/fill_mask.py --model_dir=. --text="The [MASK] is here."',
        )


def _warn_of_meaningless_flags(config: PretrainConfig) -> None:
    given = [f for f in _MEANINGLESS_FLAGS if getattr(config, f) is not None]
    if given:
        logging.warning(
            "Flags of the original that mean nothing now: %s.",
            ", ".join(f"--{flag}" for flag in given),
        )


def _read_model_config(config: PretrainConfig) -> BertConfig:
    """Reads the model's shape, lets flags override it, and checks lengths."""
    bert_config = files.read_bert_config(config.bert_config_file)
    overrides = {
        name: getattr(config, name)
        for name in ("hidden_act", "left_to_right")
        if getattr(config, name) is not None
    }
    bert_config = dataclasses.replace(bert_config, **overrides)
    longest = bert_config.max_position_embeddings
    if config.max_seq_length > longest:
        raise UserError(
            f"--max_seq_length must be at most max_position_embeddings="
            f"{longest} of {config.bert_config_file}. Received: "
            f"{config.max_seq_length}."
        )
    return bert_config
