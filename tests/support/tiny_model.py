"""A tiny model directory for tests, with random weights and real words."""

import dataclasses

import keras
import numpy as np

from bert_tf.checkpoints import model_directory
from bert_tf.config import BertConfig
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import task_models
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary

TOKENS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the cat dog sat on mat ##s ##ting . , 東"
).split()
TASK_MODELS = {
    "classification": task_models.BertForClassification,
    "question_answering": task_models.BertForQuestionAnswering,
    "tagging": task_models.BertForTagging,
    "multiple_choice": task_models.BertForMultipleChoice,
    "embeddings": task_models.BertForEmbeddings,
}
_VOCABULARY = Vocabulary(TOKENS)
CONFIG = BertConfig(
    vocab_size=len(TOKENS),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=12,
    type_vocab_size=2,
)
# Each layer takes time to build and compile, so most tests use one.
ONE_LAYER = dataclasses.replace(CONFIG, num_hidden_layers=1)
NO_DROPOUT = dataclasses.replace(
    ONE_LAYER, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)

# Building a model takes a fifth of a second, so its shapes are kept.
_known_shapes = {}


def random_weights(model=None, scale=0.5, seed=3):
    """Returns distinct weights by canonical name."""
    if model is None:
        shapes = _shapes(bert_model.BertForPretraining, CONFIG)
    else:
        shapes = _shapes_of(model)
    return random_values(shapes, scale, seed)


def random_values(shapes, scale=0.5, seed=3):
    """Returns distinct values of some shapes, by name."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(scale=scale, size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def _shapes_of(model):
    return {
        name: tuple(variable.shape)
        for name, variable in bert_model.named_variables(model).items()
    }


def _shapes(model_class, config, **arguments):
    """Returns the shapes of a model's weights by canonical name."""
    key = repr((model_class, config, arguments))
    if key not in _known_shapes:
        _known_shapes[key] = _shapes_of(model_class(config, **arguments))
    return _known_shapes[key]


def tokenizer(**settings):
    """Returns a tokenizer with the models' vocabulary."""
    return BertTokenizer(_VOCABULARY, **settings)


def write(path, with_vocabulary=True, kind="pretraining", config=CONFIG):
    """Writes the directory of a pretraining model or encoder; returns it."""
    vocabulary = _VOCABULARY if with_vocabulary else None
    weights = random_values(_shapes(bert_model.BertForPretraining, config))
    if kind == "encoder":
        weights = {n: x for n, x in weights.items() if n.startswith("bert/")}
    task = {"kind": kind, "max_seq_length": 12}
    return write_weights(path, config, weights, task, vocabulary)


def write_initialized(path, factor=1, **task):
    """Writes an encoder whose outputs distinguish tokens; returns its path.

    The weights of `write` are so large that all outputs are alike.

    Args:
      path: The directory.
      factor: Multiplies all matrices; larger factors separate texts more.
      **task: More values of task.json.
    """
    keras.utils.set_random_seed(1)
    named = bert_model.named_variables(bert_model.BertModel(ONE_LAYER))
    weights = {
        name: variable.numpy() * (factor if len(variable.shape) == 2 else 1)
        for name, variable in named.items()
    }
    task = {"kind": "encoder", **task}
    return write_weights(path, ONE_LAYER, weights, task)


def write_weights(
    path, config, weights, task, vocabulary=_VOCABULARY, **settings
):
    """Writes a model directory; returns it. Settings are the tokenizer's."""
    settings = vocabulary and BertTokenizer(vocabulary, **settings).settings()
    model_directory.write(
        path, config, weights, vocabulary, settings, task, "# Tiny\n"
    )
    return path


def write_task(path, task, weights=None, config=ONE_LAYER, **values):
    """Writes the directory of a model for a task; returns it.

    Args:
      path: The directory.
      task: The task.
      weights: Canonical name to value; random by default.
      config: The configuration of the model.
      **values: Further settings in task.json; None removes a key of the task.
    """
    values = {"kind": task.kind} | task.to_json() | values
    values = {name: x for name, x in values.items() if x is not None}
    weights = weights or random_values(
        _shapes(TASK_MODELS[task.kind], config, **task.model_arguments())
    )
    return write_weights(path, config, weights, values)
