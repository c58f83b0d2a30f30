"""Hand-written Hugging Face directories for tests."""

import json
import os
import pathlib

import safetensors.numpy
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints.huggingface import model as huggingface
from bert_tf.errors import UserError
from tests.support import tiny_layers

TOKENS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the cat dog sat on mat ##s ##ting . , "
    "東 a b c"
).split()
# Values that differ from Hugging Face's defaults.
CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 19,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
    "max_position_embeddings": 7,
    "type_vocab_size": 3,
    "initializer_range": 0.03,
    "layer_norm_eps": 1e-7,
}
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}

# Shapes in PyTorch's order, [out, in].
EMBEDDINGS = {
    "word_embeddings.weight": (19, 8),
    "position_embeddings.weight": (7, 8),
    "token_type_embeddings.weight": (3, 8),
    "LayerNorm.weight": (8,),
    "LayerNorm.bias": (8,),
}
_DENSE = {
    "attention.self.query": (8, 8),
    "attention.self.key": (8, 8),
    "attention.self.value": (8, 8),
    "attention.output.dense": (8, 8),
    "attention.output.LayerNorm": (8,),
    "intermediate.dense": (12, 8),
    "output.dense": (8, 12),
    "output.LayerNorm": (8,),
}


def _layers(**shapes):
    """Returns the shapes of weights and biases, by the names of layers."""
    return {
        f"{name}.{part}": shape
        for name, of_weight in shapes.items()
        for part, shape in (("weight", of_weight), ("bias", of_weight[:1]))
    }


def rows_of(name, rows):
    return _layers(**{name: (rows, 8)})


LAYER = _layers(**_DENSE)
POOLER = rows_of("bert.pooler.dense", 8)
MASKED_LM = (
    {"cls.predictions.bias": (19,)}
    | rows_of("cls.predictions.transform.dense", 8)
    | _layers(**{"cls.predictions.transform.LayerNorm": (8,)})
)
NEXT_SENTENCE = rows_of("cls.seq_relationship", 2)
# Kind, class name, and the shapes of its heads.
CLASSES = (
    ("encoder", "BertModel", POOLER),
    ("pretraining", "BertForPreTraining", POOLER | MASKED_LM | NEXT_SENTENCE),
    ("masked_lm", "BertForMaskedLM", MASKED_LM),
    ("next_sentence", "BertForNextSentencePrediction", POOLER | NEXT_SENTENCE),
    (
        "classification",
        "BertForSequenceClassification",
        POOLER | rows_of("classifier", 3),
    ),
    ("tagging", "BertForTokenClassification", rows_of("classifier", 3)),
    (
        "question_answering",
        "BertForQuestionAnswering",
        rows_of("qa_outputs", 2),
    ),
    (
        "multiple_choice",
        "BertForMultipleChoice",
        POOLER | rows_of("classifier", 1),
    ),
)
HEADS = {name: heads for _, name, heads in CLASSES}
LABELS = ["no", "yes", "maybe"]


def make_values(architecture="BertModel"):
    """Returns the tensors of a class by name, with the prefix `bert.`."""
    shapes = {f"bert.embeddings.{n}": s for n, s in EMBEDDINGS.items()}
    for n in range(2):
        shapes |= {f"bert.encoder.layer.{n}.{k}": s for k, s in LAYER.items()}
    shapes |= HEADS[architecture]
    return {
        name: tiny_layers.normal(*shape, seed=index)
        for index, (name, shape) in enumerate(shapes.items())
    }


def bare(values):
    return {name.removeprefix("bert."): x for name, x in values.items()}


def make_tokenizer_json(tokens=TOKENS, added=(), **normalizer):
    """Returns the relevant parts of a tokenizer.json."""
    return {
        "added_tokens": [{"id": i, "content": x} for i, x in added],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        }
        | normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: i for i, token in enumerate(tokens)},
        },
    }


class DirectoryCase(tf.test.TestCase, parameterized.TestCase):
    """A test case with a valid directory, which tests then damage."""

    def setUp(self):
        super().setUp()
        self.path = self.create_tempdir().full_path

    def write(self, name, contents):
        if not isinstance(contents, (str, bytes)):
            contents = json.dumps(contents)
        if isinstance(contents, str):
            contents = contents.encode()
        pathlib.Path(os.path.join(self.path, name)).write_bytes(contents)

    def remove(self, name):
        os.remove(os.path.join(self.path, name))

    def write_all(self, architecture="BertModel", values=None, **config):
        values = make_values(architecture) if values is None else values
        config = CONFIG | {"architectures": [architecture]} | config
        config = {key: x for key, x in config.items() if x != "absent"}
        self.write("config.json", config)
        self.write(
            "model.safetensors",
            safetensors.numpy.save(values, {"format": "pt"}),
        )
        self.write("vocab.txt", "\n".join(TOKENS) + "\n")
        self.write("tokenizer_config.json", {"do_lower_case": True} | SPECIAL)

    def read(self, **options):
        return huggingface.read_model(self.path, **options)

    def assert_refused(self, message, **options):
        with self.assertRaisesRegex(UserError, message) as context:
            self.read(**options)
        text = str(context.exception)
        self.assertNotIn("\n", text)
        self.assertEndsWith(text, ".")

    def written(self, stored):
        """Writes a model; returns its directory and `write_model`'s notes."""
        path = self.create_tempdir().full_path
        return path, huggingface.write_model(path, stored)


def read_json(*path):
    return json.loads(pathlib.Path(os.path.join(*path)).read_text("utf-8"))
