"""Hand-written Hugging Face directories for tests."""

import json
import os

import safetensors.numpy

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
LAYER = {
    "attention.self.query.weight": (8, 8),
    "attention.self.query.bias": (8,),
    "attention.self.key.weight": (8, 8),
    "attention.self.key.bias": (8,),
    "attention.self.value.weight": (8, 8),
    "attention.self.value.bias": (8,),
    "attention.output.dense.weight": (8, 8),
    "attention.output.dense.bias": (8,),
    "attention.output.LayerNorm.weight": (8,),
    "attention.output.LayerNorm.bias": (8,),
    "intermediate.dense.weight": (12, 8),
    "intermediate.dense.bias": (12,),
    "output.dense.weight": (8, 12),
    "output.dense.bias": (8,),
    "output.LayerNorm.weight": (8,),
    "output.LayerNorm.bias": (8,),
}
POOLER = {"bert.pooler.dense.weight": (8, 8), "bert.pooler.dense.bias": (8,)}
MASKED_LM = {
    "cls.predictions.bias": (19,),
    "cls.predictions.transform.dense.weight": (8, 8),
    "cls.predictions.transform.dense.bias": (8,),
    "cls.predictions.transform.LayerNorm.weight": (8,),
    "cls.predictions.transform.LayerNorm.bias": (8,),
}
NEXT_SENTENCE = {
    "cls.seq_relationship.weight": (2, 8),
    "cls.seq_relationship.bias": (2,),
}


def rows_of(name, rows):
    return {f"{name}.weight": (rows, 8), f"{name}.bias": (rows,)}


# Kind, class, and its heads.
CLASSES = (
    ("encoder", "BertModel", POOLER),
    (
        "pretraining",
        "BertForPreTraining",
        POOLER | MASKED_LM | NEXT_SENTENCE,
    ),
    ("masked_lm", "BertForMaskedLM", MASKED_LM),
    (
        "next_sentence",
        "BertForNextSentencePrediction",
        POOLER | NEXT_SENTENCE,
    ),
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
    """Returns the tensors of a class, by the names with the prefix bert."""
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


class DirectoryCase:
    """A test case with a valid directory, which tests then damage."""

    def setUp(self):
        super().setUp()
        self.path = self.create_tempdir().full_path

    def write(self, name, contents):
        if not isinstance(contents, (str, bytes)):
            contents = json.dumps(contents)
        if isinstance(contents, str):
            contents = contents.encode()
        with open(os.path.join(self.path, name), "wb") as file:
            file.write(contents)

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
        """Writes a model; returns its directory and the sentences."""
        path = self.create_tempdir().full_path
        return path, huggingface.write_model(path, stored)


def read_json(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return json.load(file)
