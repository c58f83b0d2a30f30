"""The program of this project that finetune_speed.py times.

    python finetune_speed_ours.py SETTINGS

Lines of JSON come in and go out.
"""

import itertools
import json
import os
import sys
import time

import turns

_SEED = 1
# A turn's batches are chosen from so many, which a run would make at once.
_PLANNED_BATCHES = 50


class _Work:
    """The model, and batches to train on and rows to predict."""

    def __init__(self, settings):
        import keras

        from bert_tf.checkpoints import formats
        from bert_tf.config import BertConfig
        from bert_tf.distribute import batches as batches_lib
        from bert_tf.distribute import devices as device_setup
        from bert_tf.modeling import inference
        from bert_tf.modeling.task_models import BertForClassification
        from bert_tf.tasks import predict as task_prediction
        from bert_tf.tasks.classification.examples import Columns
        from bert_tf.tasks.classification.task import ClassificationTask
        from bert_tf.training import step as training_step
        from bert_tf.training.losses import TaskObjective
        from bert_tf.training.optimizer import build_optimizer

        keras.utils.set_random_seed(_SEED)
        self._settings = settings
        with open(settings["examples_file"], encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        labels = tuple(sorted({row["label"] for row in rows}))
        pair = "text_pair" if "text_pair" in rows[0] else None
        self._task = ClassificationTask(
            name="custom",
            max_seq_length=settings["max_seq_length"],
            files={"train": settings["examples_file"]},
            labels=labels,
            metric_names=("accuracy",),
            columns=Columns("text", pair, ("label",)),
        )
        self._examples = self._task.read("train")
        self._tokenizer = formats.read(settings["tokenizer"]).build_tokenizer()
        self._features = self._task.featurize(
            self._examples, self._tokenizer, True
        )
        self._strategy = device_setup.build_strategy("one_device")
        config = BertConfig(type_vocab_size=2, **settings["shape"])
        with self._strategy.scope():
            model = BertForClassification(
                config, labels=labels, fuse=True, dtype="mixed_bfloat16"
            )
            optimizer = build_optimizer("adamw", 1e-4, 1000, 100)
            optimizer.build(model.trainable_variables)
            prepared = inference.prepare(model, "bfloat16")
        self._training_step = training_step.TrainingStep(
            self._strategy,
            model,
            TaskObjective(self._task),
            optimizer,
            batches_lib.StepPlan(settings["batch_size"]),
        )
        self._computer = task_prediction.OutputComputer(
            prepared, self._task, settings["batch_size"], self._strategy
        )

    def _lengths(self, padded):
        from bert_tf.tasks import predict as task_prediction

        return task_prediction.allowed_lengths(
            self._features.lengths,
            self._settings["max_seq_length"],
            1 if padded else 0,
        )

    def _plan(self, padded, turn):
        """Returns a turn's batches, or one of each length before the first."""
        from bert_tf.data import length_buckets

        size, count = self._settings["batch_size"], self._settings["batches"]
        lengths = self._lengths(padded)
        if turn < 0:
            import numpy as np

            order = np.argsort(self._features.lengths)
            ends = np.searchsorted(
                self._features.lengths[order], lengths, side="right"
            )
            return [
                length_buckets.Batch(np.resize(order[:end], size), length)
                for end, length in zip(ends, lengths, strict=True)
                if end
            ]
        plan = length_buckets.training_batches(
            self._features.lengths,
            size,
            _SEED + turn,
            max(count, _PLANNED_BATCHES),
            lengths,
        )
        # Evenly from short to long, so that a turn has of each what the whole
        # run has.
        plan.sort(key=lambda batch: batch.length)
        return [
            plan[(2 * i + 1) * len(plan) // (2 * count)] for i in range(count)
        ]

    def _chosen(self, turn):
        """Returns which examples a turn has."""
        import numpy as np

        size = self._settings["batch_size"] * self._settings["batches"]
        rng = np.random.default_rng(turn + 1)
        return rng.choice(len(self._features), size, replace=False)

    def _train(self, plan):
        """Returns the seconds that the steps of a plan take."""
        import numpy as np
        import tensorflow as tf

        from bert_tf.distribute import batches as batches_lib

        size = self._settings["batch_size"]

        def generate():
            for number, batch in enumerate(itertools.cycle(plan)):
                first = number * size
                index = np.arange(first, first + size, dtype=np.int64)
                rows = self._features.batch(batch.indices, batch.length)
                yield rows | {"example_index": index}

        signature = {
            name: tf.TensorSpec([size, *[None] * (x.ndim - 1)], x.dtype)
            for name, x in next(generate()).items()
        }
        dataset = tf.data.Dataset.from_generator(
            generate, output_signature=signature
        )
        dataset = batches_lib.add_dropout_seeds(dataset, _SEED)
        iterator = batches_lib.distribute_batches(
            self._strategy, dataset, batches_lib.StepPlan(size)
        )
        start = time.perf_counter()
        self._training_step.run(iterator, len(plan))
        return time.perf_counter() - start

    def run(self, do, way, turn):
        """Returns seconds, and pieces without padding."""
        padded = way == "padded"
        if do == "train":
            plan = self._plan(padded, turn)
            seconds = self._train(plan)
            lengths = [
                self._features.lengths[batch.indices].sum() for batch in plan
            ]
            return {"seconds": seconds, "pieces": int(sum(lengths))}
        if turn < 0:
            for batch in self._plan(padded, turn):
                self._predict(batch.indices, padded)
        return self._predict(self._chosen(turn), padded)

    def _predict(self, indices, padded):
        """Returns what `run` does."""
        examples = [self._examples[i] for i in indices]
        features = self._task.featurize(examples, self._tokenizer)
        start = time.perf_counter()
        self._computer.compute(features, self._lengths(padded))
        return {
            "seconds": time.perf_counter() - start,
            "pieces": int(features.lengths.sum()),
        }


def main(settings):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(settings["threads"])
    work = _Work(settings)
    turns.serve(work.run)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
