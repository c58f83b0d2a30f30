"""Tests that fine-tuning losses equal those of transformers, for each task."""

import json
import os
import pathlib
import tempfile

import pytest
import tensorflow as tf
from absl import flags
from absl.testing import parameterized

from bert_tf.commands import finetune_classifier
from bert_tf.commands import finetune_multiple_choice
from bert_tf.commands import finetune_squad
from bert_tf.commands import finetune_tagger
from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.commands.finetune_multiple_choice import MultipleChoiceConfig
from bert_tf.commands.finetune_squad import SquadConfig
from bert_tf.commands.finetune_tagger import TaggerConfig
from bert_tf.io import files
from tests.support import environments
from tests.support import minilm
from tests.support import squad_files
from tests.support import tiny_model

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PROGRAM = os.path.join(
    _ROOT, "tests", "support", "like_transformers_program.py"
)
_LENGTH = 12
_NUM_STEPS = 12
# Dropout is the only random part; with it, no losses could be equal.
_CONFIG = {
    "vocab_size": len(tiny_model.TOKENS),
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": _LENGTH,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_SETTINGS = {
    "max_seq_length": _LENGTH,
    "learning_rate": 0.02,
    "warmup_proportion": 0.3,
    "weight_decay": 0.1,
    "epsilon": 1e-8,
    "seed": 1,
}
_PAIRS = (
    ("the cat sat", "on the mat , the dog sat", "no"),
    ("dogs", "cats , dogs .", "yes"),
    ("the dog sat on mats .", "the cat", "no"),
    ("cat", "東 sat on the dog , the cat", "maybe"),
    ("on the mat", "sat", "yes"),
)
_CHOICES = (
    ("the cat", ("sat on mats .", "dog", "the 東 ,"), 0),
    ("dogs sat", ("cat", "on the mat , the dog", "sat sat"), 2),
    ("the dog sat on", ("the cat .", "mats", ", ,"), 1),
    ("東", ("the cat sat", "on", "dogs on cats ."), 0),
)
_SENTENCES = (
    (("the", "cat", "sat", "dogs"), ("O", "B-PET", "O", "B-PET")),
    (("東", "the", "mats"), ("B-CITY", "O", "O")),
    (("dog", "cat", ",", "the", "dog"), ("B-PET", "I-PET", "O", "O", "B-PET")),
    (("sat",), ("O",)),
)
# Each fills a window, because transformers counts padding as answers, too.
_QUESTIONS = (
    ("cat sat", "the dog sat on mats .", "mats"),
    ("dog", "cats , the cat . . on", "the cat"),
    ("the cats .", "東 sat on the mat", "東"),
    ("on on on on", "dogs sat , on", "sat"),
)


def _write_lines(path, rows):
    files.write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))


def _classification(folder):
    keys = ("text", "text_pair", "label")
    train = [dict(zip(keys, row, strict=True)) for row in _PAIRS]
    path = os.path.join(folder, "train.jsonl")
    _write_lines(path, train)
    return train, {
        "task_name": "custom",
        "train_file": path,
        "text_pair_column": "text_pair",
        "head_dropout_prob": 0.0,
    }


def _choice(folder):
    path = os.path.join(folder, "train.jsonl")
    _write_lines(
        path,
        [
            {"start": start, "endings": endings, "label": label}
            for start, endings, label in _CHOICES
        ],
    )
    train = [
        {
            "choices": [{"text": start, "text_pair": x} for x in endings],
            "label": label,
        }
        for start, endings, label in _CHOICES
    ]
    return train, {
        "task_name": "custom",
        "train_file": path,
        "context_column": "start",
        "choice_columns": "endings",
        "head_dropout_prob": 0.0,
    }


def _tagging(folder):
    path = os.path.join(folder, "train.conll")
    lines = [
        "".join(f"{x}\t{y}\n" for x, y in zip(words, tags, strict=True))
        for words, tags in _SENTENCES
    ]
    files.write_text(path, "\n".join(lines))
    train = [{"words": words, "tags": tags} for words, tags in _SENTENCES]
    return train, {
        "train_file": path,
        "context": "sentence",
        "head_dropout_prob": 0.0,
    }


def _squad(folder):
    train = [
        {
            "id": f"q{number}",
            "question": question,
            "context": context,
            "answer": {"start": context.index(answer), "text": answer},
        }
        for number, (question, context, answer) in enumerate(_QUESTIONS)
    ]
    rows = [(context, text, answer) for text, context, answer in _QUESTIONS]
    path = squad_files.write(
        os.path.join(folder, "train.json"), squad_files.dataset(rows)
    )
    return train, {"train_file": path, "max_query_length": 4}


# Kind to the function that writes its examples, the labels and the script.
_KINDS = {
    "classification": (
        _classification,
        ("maybe", "no", "yes"),
        ClassifierConfig,
        finetune_classifier,
    ),
    "choice": (_choice, (), MultipleChoiceConfig, finetune_multiple_choice),
    "tagging": (
        _tagging,
        ("O", "B-CITY", "I-CITY", "B-PET", "I-PET"),
        TaggerConfig,
        finetune_tagger,
    ),
    "squad": (_squad, (), SquadConfig, finetune_squad),
}


@pytest.mark.environment
class LikeTransformersTest(tf.test.TestCase, parameterized.TestCase):
    """Compares AdamW, clipping, schedule, decay, heads and float32 losses.

    Each step has all examples, so their order does not matter.
    """

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.mkdtemp(dir=flags.FLAGS.test_tmpdir)
        cls.flags, requests = {}, []
        for kind, (write, labels, _, _) in _KINDS.items():
            folder = os.path.join(cls.folder, kind)
            os.mkdir(folder)
            train, cls.flags[kind] = write(folder)
            requests.append(
                _SETTINGS
                | {
                    "kind": kind,
                    "model": folder,
                    "config": _CONFIG,
                    "vocab": tiny_model.TOKENS,
                    "labels": labels,
                    "train": train,
                    "doc_stride": _LENGTH // 2,
                    "in_bfloat16": False,
                    "num_steps": _NUM_STEPS,
                    "output": os.path.join(folder, "losses.json"),
                }
            )
        path = os.path.join(cls.folder, "requests.json")
        files.write_json(path, requests)
        environments.run(
            environments.make("transformers", *minilm.PEER),
            *(_PROGRAM, path),
            env=environments.clean_environment()
            | {"PYTHONPATH": str(_ROOT / "benchmarks")},
        )
        cls.num_examples = {x["kind"]: len(x["train"]) for x in requests}

    @parameterized.parameters(*_KINDS)
    def test_losses_equal_those_of_transformers(self, kind):
        _, _, config, script = _KINDS[kind]
        folder = pathlib.Path(self.folder, kind)
        script.main(
            config(
                **self.flags[kind],
                pretrained_model_dir=str(folder),
                output_dir=str(folder / "output"),
                do_train=True,
                max_seq_length=_LENGTH,
                train_batch_size=str(self.num_examples[kind]),
                num_train_epochs=str(_NUM_STEPS),
                learning_rate=str(_SETTINGS["learning_rate"]),
                warmup_proportion=_SETTINGS["warmup_proportion"],
                weight_decay_rate=_SETTINGS["weight_decay"],
                optimizer="adamw",
                mixed_precision="float32",
                iterations_per_loop=1,
            )
        )
        lines = (folder / "output" / "train_metrics.jsonl").read_text()
        ours = [json.loads(line) for line in lines.splitlines()]
        self.assertLen(ours, _NUM_STEPS)
        theirs = json.loads((folder / "losses.json").read_text())
        # The first step's learning rate is 0, so its loss is left out.
        self.assertGreater(theirs[1] - theirs[-1], 0.2)
        self.assertAllClose([x["loss"] for x in ours], theirs, 1e-4, 1e-4)
        norms = [x["grad_norm"] for x in ours]
        self.assertGreater(max(norms), 1.0)  # So clipping is tested.


if __name__ == "__main__":
    tf.test.main()
