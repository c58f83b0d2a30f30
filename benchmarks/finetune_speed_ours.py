"""The program of this project that finetune_speed.py times.

    python finetune_speed_ours.py SETTINGS

It trains like run/finetune_classifier.py, and predicts like run/predict.py. It
reads requests and writes answers as lines of JSON.
"""

import itertools
import json
import os
import sys
import time

import turns

_SEED = 1
# Like a real run, plan at least this many batches, and choose a turn's of them.
_PLANNED_BATCHES = 50


class _Work:
    """Examples, and the parts that training and prediction share."""

    def __init__(self, settings):
        import keras

        from bert_tf.checkpoints import formats
        from bert_tf.config import BertConfig
        from bert_tf.distribute import devices as device_setup
        from bert_tf.modeling.task_models import BertForClassification
        from bert_tf.tasks.classification.examples import Columns
        from bert_tf.tasks.classification.task import ClassificationTask

        keras.utils.set_random_seed(_SEED)
        self._size = settings["batch_size"]
        self._count = settings["batches"]
        self._max_seq_length = settings["max_seq_length"]
        with open(settings["examples_file"], encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        labels = tuple(sorted({row["label"] for row in rows}))
        pair = "text_pair" if "text_pair" in rows[0] else None
        self._task = ClassificationTask(
            name="custom",
            max_seq_length=self._max_seq_length,
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
        with self._strategy.scope():
            self._model = BertForClassification(
                BertConfig(type_vocab_size=2, **settings["shape"]),
                labels=labels,
                fuse=True,
                dtype="mixed_bfloat16",
            )

    def _lengths(self, padded):
        from bert_tf.tasks import predict as task_prediction

        return task_prediction.allowed_lengths(
            self._features.lengths, self._max_seq_length, 1 if padded else 0
        )


class _Training(_Work):
    """Steps of training."""

    def __init__(self, settings):
        from bert_tf.distribute.batches import StepPlan
        from bert_tf.training import step as training_step
        from bert_tf.training.losses import TaskObjective
        from bert_tf.training.optimizer import build_optimizer

        super().__init__(settings)
        self._step_plan = StepPlan(self._size)
        with self._strategy.scope():
            optimizer = build_optimizer("adamw", 1e-4, 1000, 100)
            optimizer.build(self._model.trainable_variables)
        self._training_step = training_step.TrainingStep(
            self._strategy,
            self._model,
            TaskObjective(self._task),
            optimizer,
            self._step_plan,
        )

    def run(self, way, turn):
        """Returns seconds, and the number of tokens without padding."""
        padded = way == "padded"
        plan = self._warm_up(padded) if turn < 0 else self._plan(padded, turn)
        unpad = not padded and self._unpads()
        seconds = self._train(plan, self._token_finder() if unpad else None)
        return {"seconds": seconds, "tokens": self._count_tokens(plan)}

    def _count_tokens(self, plan):
        lengths = self._features.lengths
        return int(sum(lengths[batch.indices].sum() for batch in plan))

    def _warm_up(self, padded):
        """Returns each length's batches of its shortest and longest rows."""
        import numpy as np

        from bert_tf.data import length_buckets

        order = np.argsort(self._features.lengths)
        lengths = self._lengths(padded)
        ends = np.searchsorted(
            self._features.lengths[order], lengths, side="right"
        )
        return [
            length_buckets.Batch(np.resize(rows, self._size), length)
            for start, end, length in zip(
                [0, *ends[:-1]], ends, lengths, strict=True
            )
            if start < end
            for rows in (order[start:end], order[start:end][::-1])
        ]

    def _plan(self, padded, turn):
        """Returns a turn's batches."""
        plan = self._run_plan(padded, turn)
        # Choose evenly from short to long, so that a turn has the lengths of a
        # whole run.
        plan.sort(key=lambda batch: batch.length)
        return [
            plan[(2 * i + 1) * len(plan) // (2 * self._count)]
            for i in range(self._count)
        ]

    def _run_plan(self, padded, turn=0):
        """Returns the batches of a whole run."""
        from bert_tf.data import length_buckets

        return length_buckets.training_batches(
            self._features.lengths,
            self._size,
            _SEED + turn,
            max(self._count, _PLANNED_BATCHES),
            self._lengths(padded),
        )

    def _unpads(self):
        """Returns the choice of --unpad=auto."""
        from bert_tf.training import unpad as unpadding

        plan = self._run_plan(padded=False)
        positions = self._size * sum(batch.length for batch in plan)
        width = self._model.bert_config.hidden_size
        return unpadding.pays(
            self._count_tokens(plan) / positions,
            self._size * self._max_seq_length * width,
        )

    def _token_finder(self):
        from bert_tf.training import unpad as unpadding

        shapes = [[length] for length in self._lengths(padded=False)]
        return unpadding.token_finder(self._step_plan, shapes[-1], shapes)

    def _train(self, plan, transform):
        """Returns the seconds that the steps of a plan take."""
        import numpy as np
        import tensorflow as tf

        from bert_tf.distribute import batches as batches_lib

        def generate():
            for number, batch in enumerate(itertools.cycle(plan)):
                first = number * self._size
                index = np.arange(first, first + self._size, dtype=np.int64)
                rows = self._features.batch(batch.indices, batch.length)
                yield rows | {"example_index": index}

        signature = {
            name: tf.TensorSpec([self._size, *[None] * (x.ndim - 1)], x.dtype)
            for name, x in next(generate()).items()
        }
        dataset = tf.data.Dataset.from_generator(
            generate, output_signature=signature
        )
        dataset = batches_lib.add_dropout_seeds(dataset, _SEED)
        iterator = batches_lib.distribute_batches(
            self._strategy, dataset, self._step_plan, transform=transform
        )
        start = time.perf_counter()
        self._training_step.run(iterator, len(plan))
        return time.perf_counter() - start


class _Prediction(_Work):
    """Predictions of rows."""

    def __init__(self, settings):
        from bert_tf.modeling import inference
        from bert_tf.tasks import predict as task_prediction

        super().__init__(settings)
        with self._strategy.scope():
            prepared = inference.prepare(self._model, "bfloat16")
        self._computer = task_prediction.OutputComputer(
            prepared, self._task, self._size, self._strategy
        )

    def run(self, way, turn):
        """Returns seconds, and the number of tokens without padding."""
        import numpy as np

        padded = way == "padded"
        rng = np.random.default_rng(turn + 1)
        chosen = rng.choice(
            len(self._features), self._size * self._count, replace=False
        )
        examples = [self._examples[i] for i in chosen]
        features = self._task.featurize(examples, self._tokenizer)
        self._computer.unpad = not padded
        start = time.perf_counter()
        self._computer.compute(features, self._lengths(padded))
        return {
            "seconds": time.perf_counter() - start,
            "tokens": int(features.lengths.sum()),
        }


_WORKS = {"train": _Training, "predict": _Prediction}


def main(settings):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(settings["threads"])
    works = {}

    def run(do, **request):
        if do not in works:
            works[do] = _WORKS[do](settings)
        return works[do].run(**request)

    turns.serve(run)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
