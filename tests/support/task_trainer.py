"""Tiny models of each kind of task, trained for a few steps."""

import dataclasses
import types

import numpy as np
import tensorflow as tf

from bert_tf.distillation.objective import DistillationObjective
from bert_tf.distillation.objective import LayerPairs
from bert_tf.distribute import batches as batches_lib
from bert_tf.distribute.batches import StepPlan
from bert_tf.finetuning.trial import FinetuneInput
from bert_tf.modeling import bert as bert_model
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.multiple_choice.examples import Columns
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from bert_tf.training import optimizer as optimizers
from bert_tf.training import xla
from bert_tf.training.losses import TaskObjective
from bert_tf.training.step import TrainingStep
from tests.support import tiny_model

_LENGTHS = (8, 12)
_READ_POOLER = ("classification", "multiple_choice")
_FOR_DISTILLATION = {
    "return_all_layers": True,
    "return_embeddings": True,
    "return_attention_probs": True,
}


def _relabel(examples, **columns):
    """Returns examples with other values in some columns."""
    values = zip(*columns.values(), strict=True)
    return [
        dataclasses.replace(example, **dict(zip(columns, row, strict=True)))
        for example, row in zip(examples, values, strict=True)
    ]


def _texts():
    task = ClassificationTask(
        name="custom",
        labels=("a", "b"),
        metric_names=("accuracy",),
        max_seq_length=12,
    )
    texts = ("cat", "the dog", "the cat sat on the mat . the cat", "mat")
    examples = [task.example_from_row(text) for text in texts]
    return task, _relabel(examples, label="abba")


def _words(**values):
    task = TaggingTask(
        name="custom", labels=("O", "B-X"), max_seq_length=12, **values
    )
    rows = [("cat", "mats"), ("dog",), ("the",) * 7, ("sat", "on")]
    tags = [("O", "B-X"), ("O",), ("B-X",) * 7, ("O", "B-X")]
    return task, _relabel(
        [task.example_from_row(list(row)) for row in rows], tags=tags
    )


def _questions():
    task = SquadTask(max_seq_length=12, doc_stride=2, max_query_length=3)
    rows = [("cat", "the dog")] * 3 + [("who", "the dog sat on the mat")]
    examples = [
        task.example_from_row({"question": question, "context": context})
        for question, context in rows
    ]
    return task, _relabel(
        examples,
        start_position=(1, 0, 0, 2),
        end_position=(1, 1, 0, 2),
        orig_answer_text=("dog", "the dog", "the", "sat"),
        is_impossible=(False,) * 4,
    )


def _choices():
    task = MultipleChoiceTask(
        name="custom", columns=Columns(("choices",)), max_seq_length=12
    )
    rows = [("cat", "dog"), ("mat", "the"), ("the cat sat " * 3, "dog")]
    rows.append(("on", "sat"))
    examples = [task.example_from_row({"choices": list(row)}) for row in rows]
    return task, _relabel(examples, label=(0, 1, 1, 0))


TASKS = {
    "classification": _texts,
    "tagging": _words,
    "tagging_with_lstms": lambda: _words(head="bilstm", lstm_size=3),
    "squad": _questions,
    "multiple_choice": _choices,
    "distillation": _texts,
}


class TaskTrainer:
    """A model of a task, its training data and its training loop.

    Args:
      name: One of `TASKS`.
      xla_flag: `--xla`.
      kind: The kind of device that the step is compiled for.
    """

    _BATCH = 2
    _STEPS = 4

    def __init__(self, name, xla_flag="auto", kind="CPU"):
        task, examples = TASKS[name]()
        tokenizer = BertTokenizer(Vocabulary(tiny_model.TOKENS))
        features = task.featurize(examples, tokenizer, True)
        strategy = tf.distribute.OneDeviceStrategy("CPU:0")
        source = FinetuneInput(
            features, self._BATCH, 5, self._STEPS, _LENGTHS, 2
        )
        self.row_shapes = source.row_shapes()
        teaches = name == "distillation"
        model_arguments = {"fuse": xla_flag != "off"}
        config = tiny_model.ONE_LAYER
        if teaches:
            model_arguments |= _FOR_DISTILLATION
            config = tiny_model.CONFIG  # The pairs of layers need both.
        with strategy.scope():
            model = self._build(task, config, model_arguments, 3)
            objective = TaskObjective(task)
            if teaches:
                objective = DistillationObjective(
                    task,
                    self._build(task, config, model_arguments, 4),
                    types.SimpleNamespace(
                        distillation_weight=0.5,
                        hidden_weight=1.0,
                        attention_weight=1.0,
                        temperature=2.0,
                        hidden_loss="mse",
                    ),
                    LayerPairs((1, 2), None, 0.02),
                )
            self._variables = {
                name: variable
                for name, variable in bert_model.named_variables(model).items()
                if task.kind in _READ_POOLER or "/pooler/" not in name
            }
            optimizer = optimizers.build_optimizer("bert_adam", 1e-3, 10)
            optimizer.build(list(self._variables.values()))
        plan = StepPlan(self._BATCH)
        self.training_step = TrainingStep(
            strategy,
            model,
            objective,
            optimizer,
            plan,
            compilation=xla.Compilation(xla_flag, kind, self.row_shapes),
        )
        iterator = batches_lib.distribute_batches(
            strategy, source.dataset(0), plan
        )
        self.losses = [
            self.training_step.run(iterator, 1)[1]["loss"]
            for _ in range(self._STEPS)
        ]

    def _build(self, task, config, arguments, seed):
        model = tiny_model.TASK_MODELS[task.kind](
            config, **task.model_arguments() | arguments
        )
        rng = np.random.default_rng(seed)
        for variable in bert_model.named_variables(model).values():
            variable.assign(rng.normal(size=variable.shape, scale=0.3))
        return model

    def weights(self):
        """Returns the weights by canonical name."""
        return {name: v.numpy() for name, v in self._variables.items()}
