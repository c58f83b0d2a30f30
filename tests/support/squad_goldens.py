"""Goldens of the original on SQuAD's dev sets, and heads to compare."""

import functools
import gzip
import json
import pathlib

import numpy as np

from bert_tf.export.heads.question_answering import QuestionAnswering
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.text.tokenizer import BertTokenizer
from tests.support.shared_data import golden


@functools.cache
def read_golden(name):
    """Returns the configuration, the examples and the windows, by name."""
    path = golden(f"squad/{name}.features.json.gz")
    return json.loads(gzip.decompress(pathlib.Path(path).read_bytes()))


def read_features(name):
    """Returns the configuration and the windows."""
    values = read_golden(name)
    return values["config"], values["features"]


def read_json(name):
    path = golden(f"squad/{name}")
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


def read_logits(name):
    logits = np.load(golden(f"squad/{name}.logits.npz"))
    return {key: logits[key] for key in ("start_logits", "end_logits")}


def read_questions(config):
    """Returns the questions and contexts, as inputs of the head."""
    paragraphs = [
        paragraph
        for article in read_json(config["input"])["data"]
        for paragraph in article["paragraphs"]
    ]
    pairs = [
        (question["question"], paragraph["context"])
        for paragraph in paragraphs
        for question in paragraph["qas"]
    ]
    questions, contexts = zip(*pairs, strict=True)
    return {"question": list(questions), "context": list(contexts)}


def build_task(config, **values):
    """Returns the task, which does not mask padding, and the tokenizer."""
    names = (
        "max_seq_length",
        "doc_stride",
        "max_query_length",
        "version_2_with_negative",
    )
    values = {"mask_padding": False} | values
    task = SquadTask(**{name: config[name] for name in names} | values)
    tokenizer = BertTokenizer.from_vocab_file(
        golden(f"vocab/{config['vocab']}"), config["do_lower_case"]
    )
    return task, tokenizer


def build_head(config, **values):
    """Returns a head that, like the original, does not mask padding."""
    task, tokenizer = build_task(config, **values)
    length = config["max_seq_length"]
    return QuestionAnswering(tokenizer, length, (length,), task)
