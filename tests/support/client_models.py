"""Models whose answers reveal how a client tokenized a text."""

import dataclasses
import os

import numpy as np

from bert_tf.config import ASCII_LOWER
from bert_tf.config import ORIGINAL
from bert_tf.export.tflite import build as builds
from bert_tf.export.tflite import run as tflite_export
from bert_tf.flags.export import TfliteConfig
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary
from tests.support import tiny_exports
from tests.support import tiny_model

LABELS = ("bad", "good", "so-so", "Ümlaut, with a comma")
# The Task Library's question answerer requires inputs of this length.
QA_LENGTH = 384
LENGTH = 32
_WORDS = ("the", "film", "was", "good", "##es", "##ing", "cafe", "café", "uber")
# Both cases and accents, because some clients do not normalize them.
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCÇçéÉüÜıßσς\u0301\u00ad\u200b"
_ALONE = "0123456789!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~—“”…中文Ａ"
VOCABULARY = Vocabulary(
    [
        *SPECIAL_TOKENS,
        *_WORDS,
        *_LETTERS,
        *(f"##{letter}" for letter in _LETTERS),
        *_ALONE,
    ]
)
CONFIG = dataclasses.replace(
    tiny_model.CONFIG,
    vocab_size=len(VOCABULARY),
    hidden_size=32,
    intermediate_size=48,
    max_position_embeddings=QA_LENGTH,
)
ASCII_TEXTS = (
    "",
    "the film was good",
    "The FILM was GOOD!!",
    "What's \"this\"?\tI don't know...\r\nno",
    "a_b-c/d\\e [MASK] {x} <y> ~z `q` a@b.cd #1 50% $3 ^& *= |",
    "unbreakable " + "z" * 99 + " " + "y" * 100 + " " + "x" * 101,
    "the films was filming " * 30,
)
OTHER_TEXTS = (
    "Café au lait, ÉTÉ",
    "U\u0308ber u\u0308ber über ÜBER",
    "so\u00adft hy\u200bphen",
    "a\u00a0b the\u3000film\u2028was\u0085good",
    "\u000b a\u000bb a\u000cb a\u001cb \u007f",
    "中文film 东西",
    "“the film”—good…",
    "Straße İstanbul ısı ΣΟΦΟΣ ὈΔΥΣΣΕΎΣ",
    "the 😀 film \ufffd é" * 3,
    "é" * 50 + " " + "é" * 51,
    "\u0301 the \u200d film \ue000 \u0e01\u0e33",
)
OTHER_QUESTIONS = (
    ("What was it?", "the film was good"),
    ("who", "abc  The FILM was GOOD, in ABC; the cafe was not so good. " * 3),
    ("Où, ÉTÉ?", "Café au lait É the film 中文 was \u00e9 good"),
    ("the film " * 70, "yes it was a film of films and was good " * 60),
)


def draw_questions():
    """Returns questions with contexts whose words are tokens.

    The Task Library answers with whole words, so its answers can equal ours.
    """
    rng = np.random.default_rng(1)
    words = "the film was good cafe café uber The FILM Was GOOD 1 2 3 4 a b c"
    return [
        tuple(
            " ".join(rng.choice(words.split(), rng.integers(*bounds)))
            for bounds in ((1, 8), (40, 250))
        )
        for _ in range(12)
    ]


def classification():
    return tiny_exports.classification(max_seq_length=LENGTH, labels=LABELS)


def squad():
    """Returns the task of the model that answers questions."""
    return SquadTask(max_seq_length=QA_LENGTH, max_answer_length=32)


def write(path, task, normalization=ORIGINAL, lower_case=True):
    """Writes a model directory with random weights; returns its path."""
    model = tiny_model.TASK_MODELS[task.kind](CONFIG, **task.model_arguments())
    weights = tiny_model.random_weights(model, 0.3, seed=5)
    return tiny_model.write_weights(
        path,
        CONFIG,
        weights,
        {"kind": task.kind} | task.to_json(),
        VOCABULARY,
        lower_case=lower_case,
        normalization=normalization,
    )


def write_both(folder, task):
    """Writes two models: with the normalization of clients and the original's.

    Returns:
      The directories by normalization.
    """
    return {
        normalization: write(
            os.path.join(folder, f"{task.kind}_{normalization}"),
            task,
            normalization,
        )
        for normalization in (ASCII_LOWER, ORIGINAL)
    }


def export(model_dir, path, **flags):
    """Writes a .tflite file; returns its path."""
    config = TfliteConfig(
        model_dir=model_dir,
        output_file=path,
        **{"quantization": "none"} | flags,
    )
    built = tflite_export.make(builds.prepare(config))
    with open(path, "wb") as file:
        file.write(built.content)
    return path
