"""Tests against transformers itself, in an environment with PyTorch."""

import contextlib
import csv
import dataclasses
import gzip
import io
import json
import os
import pathlib
import pickle
import shutil
import sys
import tempfile
import unittest

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import parameterized

import bert_tf
from bert_tf.checkpoints import formats
from bert_tf.checkpoints.huggingface import model as huggingface
from bert_tf.io import files
from tests.support import environments
from tests.support import minilm
from tests.support.repository import ROOT
from tests.support.shared_data import data
from tests.support.shared_data import golden

_FOLDERS = (
    "banking77",
    "clinc150",
    "codah",
    "comve",
    "corpus",
    "mnli",
    "qnli",
    "snli",
    "squad",
    "wikigold",
    "wnli",
    "wnut17",
)
_SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".conll")


def read() -> list[str]:
    """Returns each distinct line of all texts, in a fixed order.

    Lines are questions, contexts, cells of tables and tagged sentences. Labels
    and numbers are not filtered out, because they do no harm.
    """
    lines, folders = {}, [golden("squad_dev")]
    with contextlib.suppress(unittest.SkipTest):
        folders += [data(name) for name in _FOLDERS]
    for folder in folders:
        for path in sorted(pathlib.Path(folder).rglob("*")):
            name = path.name.removesuffix(".gz")
            suffix = pathlib.Path(name).suffix
            if path.is_file() and suffix in _SUFFIXES:
                contents = path.read_bytes()
                if path.suffix == ".gz":
                    contents = gzip.decompress(contents)
                for text in _texts(contents.decode("utf-8"), suffix):
                    lines.update(dict.fromkeys(text.split("\n")))
    lines.pop("", None)
    return list(lines)


def _texts(contents: str, suffix: str):
    if suffix == ".txt":
        return [contents]
    if suffix == ".conll":
        # A line has a word and its tags; a blank line ends a sentence.
        return [
            " ".join(w for x in sentence.split("\n") for w in x.split()[:1])
            for sentence in contents.split("\n\n")
            if sentence.strip()
        ]
    if suffix == ".csv":
        rows = csv.reader(io.StringIO(contents, newline=""))
        return [cell for row in rows for cell in row]
    if suffix == ".tsv":
        return contents.replace("\t", "\n").split("\n")
    if suffix == ".jsonl":
        lines = contents.split("\n")
        return [t for x in lines if x for t in _strings(json.loads(x))]
    return _strings(json.loads(contents))


def _strings(value):
    """Yields every string in a JSON value, except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        values = value.values() if isinstance(value, dict) else value
        for child in values:
            yield from _strings(child)


_PROGRAM = str(ROOT / "tests/support/transformers_program.py")
_DANGER = os.path.join(tempfile.gettempdir(), f"unpickled-{os.getpid()}")
_TOLERANCE = 2e-5

_READ_PYTORCH = """
import json, os, sys
sys.path.append(sys.argv[1])
import numpy as np
from bert_tf.errors import UserError
from bert_tf.checkpoints import formats
answers = {}
for path in json.load(open(sys.argv[2])):
    try:
        weights = dict(formats.read(path, "huggingface").weights)
        np.savez(os.path.join(path, "weights.npz"), **weights)
    except UserError as error:
        answers[path] = str(error)
print(json.dumps(answers))
"""

_CLASSES = tuple(dict.fromkeys(huggingface.ARCHITECTURES.values()))
_INPUTS = {
    "input_input_ids": "input_ids",
    "input_attention_mask": "input_mask",
    "input_token_type_ids": "segment_ids",
}
# Outputs' names in transformers to ours.
_OUTPUTS = {
    "output_last_hidden_state": "sequence_output",
    "output_pooler_output": "pooled_output",
    "output_prediction_logits": "masked_lm_logits",
    "output_seq_relationship_logits": "next_sentence_logits",
    "output_start_logits": "start_logits",
    "output_end_logits": "end_logits",
}
# Class to our name of its `output_logits`, where it is not `logits`.
_LOGITS = {
    "BertForMaskedLM": "masked_lm_logits",
    "BertForNextSentencePrediction": "next_sentence_logits",
}
# do_lower_case and strip_accents; the classes take the pairs in turn.
_TOKENIZERS = ((True, None), (False, None), (True, False), (False, True))
_VOCABULARY = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the The caf ##é ##e café cafe été ete "
    "##s Été ete. . , ! 東 京 a ##a οδος οδοσ"
).split()
_LINES = (
    "The café, THE Été!",
    "the cafés. été ete",
    "東京 the\u00a0caf\u200bé aaaa zzz",
    "",
    "e\u0301te\u0301 CAFÉ",
)


def _config(index, name):
    """Returns a configuration with different sizes everywhere."""
    config = {
        "vocab_size": len(_VOCABULARY),
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "max_position_embeddings": 9,
        "type_vocab_size": 2 + index % 2,
        "layer_norm_eps": 1e-5,
        "hidden_act": ("gelu", "gelu_new", "relu", "gelu_pytorch_tanh")[
            index % 4
        ],
    }
    if name in ("BertForSequenceClassification", "BertForTokenClassification"):
        labels = ["no", "yes", "maybe", "never"]
        config["id2label"] = dict(enumerate(labels))
        config["label2id"] = {label: i for i, label in enumerate(labels)}
    return config


def _peer_answers(folder, requests):
    """Runs requests in the PyTorch environment; returns the outputs."""
    python = environments.make("transformers", *minilm.PEER)
    for index, request in enumerate(requests):
        request["output"] = os.path.join(folder, f"output{index}.npz")
    path = os.path.join(folder, "requests.json")
    files.write_json(path, requests)
    environments.run(*(python, _PROGRAM, path))
    return [np.load(request["output"]) for request in requests]


def _write_text(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
    return path


def _convert(source, target):
    os.makedirs(target)
    return huggingface.write_model(target, formats.read(source))


@pytest.mark.environment
class MinilmLiveTest(tf.test.TestCase):
    """Compares MiniLM: tokenizer, and outputs after import and export."""

    def test_ids_match_its_own_tokenizer_on_all_english_text(self):
        folder = self.create_tempdir().full_path
        path = minilm.directory()
        lines = read()
        file = _write_text(folder, "lines.txt", "\n".join(lines))
        request = {"do": "tokenize", "model": path, "lines_file": file}
        (theirs,) = _peer_answers(folder, [request])
        lengths, ids = theirs["lengths"], theirs["ids"]
        self.assertLen(lengths, len(lines))
        self.assertGreater(len(ids), 800_000)  # Even without shared data.
        tokenizer = bert_tf.load_tokenizer(path)
        tokenize = tf.function(
            tokenizer.tokenize,
            input_signature=[tf.TensorSpec([None], tf.string)],
        )
        differing, end = [], 0
        for start in range(0, len(lines), 2000):
            rows = slice(start, start + 2000)
            ours = tokenize(tf.constant(lines[rows]))
            first, end = end, end + int(lengths[rows].sum())
            if not np.array_equal(
                ours.row_lengths(), lengths[rows]
            ) or not np.array_equal(ours.flat_values, ids[first:end]):
                differing.append(start)
        self.assertEqual(end, len(ids))
        # English text has none of the differences that docs/interop.md lists.
        self.assertEmpty(differing)

    def test_outputs_match_and_transformers_loads_its_export(self):
        folder = self.create_tempdir().full_path
        path = minilm.directory()
        export = os.path.join(folder, "export")
        _convert(path, export)
        texts_file = str(minilm.TEXTS_FILE)
        theirs, again = _peer_answers(
            folder,
            [
                {"do": "encode", "model": path, "texts_file": texts_file},
                {"do": "encode", "model": export, "texts_file": texts_file},
            ],
        )
        tokenizer = bert_tf.load_tokenizer(path)
        ids, segments = minilm.pack(tokenizer, minilm.read_texts())
        self.assertAllEqual(np.concatenate(ids), theirs["ids"])
        self.assertAllEqual(np.concatenate(segments), theirs["segments"])
        model = bert_tf.load_model(path)
        hidden, pooled = minilm.compute(model, ids, segments)
        self.assertAllClose(hidden, theirs["hidden"], 0, _TOLERANCE)
        self.assertAllClose(pooled, theirs["pooled"], 0, _TOLERANCE)
        self.assertEqual(json.loads(str(again["wrong_keys"])), {})
        self.assertAllEqual(again["ids"], theirs["ids"])
        self.assertAllEqual(again["segments"], theirs["segments"])
        # PyTorch's order of summation depends on memory, so digits may differ.
        self.assertAllClose(again["hidden"], theirs["hidden"], 0, 2e-6)
        self.assertAllClose(again["pooled"], theirs["pooled"], 0, 2e-6)


@pytest.mark.environment
class ClassesLiveTest(tf.test.TestCase, parameterized.TestCase):
    """Compares tiny random models of every class, and tokenizers."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.mkdtemp(dir=flags.FLAGS.test_tmpdir)
        answers = cls._ask(
            [{"do": "default_config"}]
            + [
                request
                for index, name in enumerate(_CLASSES)
                for request in cls._save(index, name)
            ]
        )
        cls.default_config = json.loads(str(answers.pop(0)["config"]))
        cls.theirs = dict(zip(_CLASSES, answers[::3], strict=True))
        cls.their_ids = dict(zip(_CLASSES, answers[2::3], strict=True))
        for name in _CLASSES:
            _convert(cls._path(name), cls._path(f"{name}-export"))
        answers = cls._ask(
            request
            for name in _CLASSES
            for request in cls._load(name, f"{name}-export")
        )
        cls.exports = dict(zip(_CLASSES, answers[::2], strict=True))
        cls.export_ids = dict(zip(_CLASSES, answers[1::2], strict=True))

    @classmethod
    def _ask(cls, requests):
        folder = tempfile.mkdtemp(dir=cls.folder)
        return _peer_answers(folder, list(requests))

    @classmethod
    def _path(cls, name):
        return os.path.join(cls.folder, name)

    @classmethod
    def _save(cls, index, name):
        path = cls._path(name)
        lower_case, strip_accents = _TOKENIZERS[index % len(_TOKENIZERS)]
        return [
            {
                "do": "save",
                "name": name,
                "config": _config(index, name),
                "model": path,
                "seed": index,
            },
            {
                "do": "save_tokenizer",
                "vocab": _VOCABULARY,
                "model": path,
                "do_lower_case": lower_case,
                "strip_accents": strip_accents,
            },
            cls._tokenize(path),
        ]

    @classmethod
    def _load(cls, name, folder):
        path = cls._path(folder)
        return [
            {"do": "load", "name": name, "model": path},
            cls._tokenize(path),
        ]

    @classmethod
    def _tokenize(cls, path):
        file = _write_text(cls.folder, "lines.txt", "\n".join(_LINES))
        return {"do": "tokenize", "model": path, "lines_file": file}

    def test_defaults_match_its_config(self):
        keys = set(self.default_config)
        ours, _ = huggingface.to_bert_config({}, "there")
        theirs, notes = huggingface.to_bert_config(self.default_config, "there")
        self.assertEqual(ours, theirs)
        self.assertLen(notes, 1)  # About GELU; every key is known.
        named = {field.name for field in dataclasses.fields(ours)}
        self.assertEqual(named - keys, {"left_to_right"})

    @parameterized.parameters(*_CLASSES)
    def test_outputs_of_their_model_match_here(self, name):
        theirs = self.theirs[name]
        has_head = name != "BertModel"
        arguments = {"return_encoder_outputs": True} if has_head else {}
        model = bert_tf.load_model(self._path(name), **arguments)
        outputs = model(
            {ours: np.int32(theirs[key]) for key, ours in _INPUTS.items()}
        )
        compared = 0
        for key in theirs:
            if not key.startswith("output_"):
                continue
            ours = _OUTPUTS.get(key) or _LOGITS.get(name, "logits")
            self.assertAllClose(outputs[ours], theirs[key], 0, _TOLERANCE)
            self.assertGreater(np.std(theirs[key]), 0.01)
            compared += 1
        # Two outputs: hidden states and pooler, two heads, or start and end.
        self.assertEqual(
            compared,
            2
            if name
            in ("BertModel", "BertForPreTraining", "BertForQuestionAnswering")
            else 1,
        )

    @parameterized.parameters(*_CLASSES)
    def test_outputs_of_our_export_match_there(self, name):
        export, original = self.exports[name], self.theirs[name]
        self.assertEqual(json.loads(str(export["wrong_keys"])), {})
        self.assertEqual(set(export) - {"wrong_keys"}, set(original))
        for key in original:
            # The export may name a tanh form of GELU that rounds differently.
            self.assertAllClose(export[key], original[key], 0, 1e-6)

    @parameterized.parameters(*_CLASSES)
    def test_weight_files_match_byte_for_byte(self, name):
        contents = []
        for folder in (name, f"{name}-export"):
            path = os.path.join(self._path(folder), "model.safetensors")
            contents.append(files.read_bytes(path))
        self.assertEqual(*contents)

    @parameterized.parameters(*enumerate(_CLASSES))
    def test_tokenizers_split_as_transformers_does(self, index, name):
        """The classes take the settings of `_TOKENIZERS` in turn."""
        theirs = self.their_ids[name]
        for key in ("ids", "lengths"):
            self.assertAllEqual(self.export_ids[name][key], theirs[key])
        tokenizer = bert_tf.load_tokenizer(self._path(name))
        ours = tokenizer.tokenize(_LINES)
        self.assertAllEqual(ours.flat_values, theirs["ids"])
        self.assertAllEqual(ours.row_lengths(), theirs["lengths"])
        lower_case, strip_accents = _TOKENIZERS[index % len(_TOKENIZERS)]
        self.assertEqual(tokenizer.lower_case, lower_case)
        expected = lower_case if strip_accents is None else strip_accents
        self.assertEqual(tokenizer.strip_accents, expected)

    def test_tokenizers_differ_for_known_causes(self):
        """Checks the causes in the original's golden strings, and long words.

        The limit of characters per word is read from tokenizer.json.
        """
        path = self._path("BertModel")
        lines = ["a" * 100, "a" * 101, "a" * 200, "a" * 201]
        # A final sigma, and a mark of Unicode 14 that their tables lack.
        lines += ["ΟΔΟΣ", "a\u061da", "the [MASK]."]
        file = _write_text(self.folder, "long.txt", "\n".join(lines))
        (theirs,) = self._ask(
            [{"do": "tokenize", "model": path, "lines_file": file}]
        )
        # 100 characters are 100 tokens here; a longer word is one [UNK].
        self.assertAllEqual(theirs["lengths"], [100, 1, 1, 1, 1, 1, 3])
        tokenizer = bert_tf.load_tokenizer(path)
        ours = tokenizer.tokenize(lines)
        self.assertAllEqual(ours.row_lengths(), [100, 1, 1, 1, 1, 3, 5])
        ids = theirs["ids"][103:105]
        tokens = [_VOCABULARY[i] for i in (ours[4][0], *ids)]
        self.assertEqual(tokens, ["οδος", "οδοσ", "[UNK]"])
        tokenizer = bert_tf.load_tokenizer(path, preserve_special_tokens=True)
        self.assertAllEqual(tokenizer.tokenize(lines)[-1], theirs["ids"][-3:])

    def test_pytorch_files_are_read_without_running_code(self):
        """Reads with this Python, which has PyTorch last in its search path."""
        folders = {}
        for name in _CLASSES:
            for kind in ("torch", "legacy"):
                path = os.path.join(self._path(name), kind)
                for file in ("config.json", "tokenizer.json"):
                    shutil.copy(os.path.join(self._path(name), file), path)
                folders[path] = self._path(f"{name}-export")
        for name, contents in (
            ("code", pickle.dumps({"x": _Dangerous()})),
            ("cut", _read(path, "pytorch_model.bin")[:-300]),
            ("empty", b""),
        ):
            broken = os.path.join(self.folder, name)
            shutil.copytree(path, broken)
            files.write_bytes(f"{broken}/pytorch_model.bin", contents)
            folders[broken] = None
        python = environments.make("transformers", *minilm.PEER)
        packages = environments.run(
            *(python, "-c", "import site; print(site.getsitepackages()[0])")
        ).strip()
        request = os.path.join(self.folder, "folders.json")
        files.write_json(request, list(folders))
        output = environments.run(
            *(sys.executable, "-c", _READ_PYTORCH, packages, request), cwd=ROOT
        )
        answers = json.loads(output.splitlines()[-1])
        for path, expected in folders.items():
            if expected:
                with np.load(os.path.join(path, "weights.npz")) as weights:
                    theirs = formats.read(expected).weights
                    self.assertEqual(set(weights), set(theirs), path)
                    for name in weights:
                        self.assertAllEqual(weights[name], theirs[name], name)
            else:
                self.assertRegex(answers[path], "more than tensors, and is not")
                self.assertNotIn("weights_only", answers[path])
        self.assertFalse(os.path.exists(_DANGER))


class _Dangerous:
    """Writes a file when it is unpickled."""

    def __reduce__(self):
        return (open, (_DANGER, "w"))


def _read(*path):
    return files.read_bytes(os.path.join(*path))


if __name__ == "__main__":
    tf.test.main()
