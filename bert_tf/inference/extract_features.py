"""Writes a model's activations for each token of each line of a text.

Flags and JSON lines are as in the original's extract_features.py, including the
misspelled key `linex_index`.

Shapes:
  B: batch size.
  S: sequence length.
  H: hidden size.
"""

import itertools
import json
import re
from collections.abc import Iterator
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.flags import options
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import progress
from bert_tf.io import text_files
from bert_tf.modeling import bert as bert_model
from bert_tf.text import packing
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary

# Split at the last " ||| ", as in the original (extract_features.py:331).
_PAIR = re.compile(r"^(.*) \|\|\| (.*)$")


def run(config: Flags) -> None:
    """Runs feature extraction: run/extract_features.py."""
    files.require_writable(config.output_file, "--output_file")
    model, tokenizer = _load(config)
    num_layers = model.bert_config.num_hidden_layers
    layers = config.choose_layers(num_layers)
    source = config.model_dir or config.init_checkpoint
    longest = model.bert_config.max_position_embeddings
    options.require_length(config, longest, source)
    num_lines = sum(1 for _ in _read_lines(config.input_file))
    if not num_lines:
        raise UserError(f"--input_file has no line: {config.input_file!r}.")
    number = 0
    with (
        files.atomic_file(config.output_file) as temporary,
        tf.io.gfile.GFile(temporary, "w") as output,
        progress.bar(num_lines, "extracting features", "line") as bar,
    ):
        remaining = _read_lines(config.input_file)
        while lines := list(itertools.islice(remaining, config.batch_size)):
            packed = _pack(lines, tokenizer, config.max_seq_length)
            for line in _compute(model, tokenizer, packed, layers):
                row = {"linex_index": number, "features": line}
                output.write(json.dumps(row) + "\n")
                number += 1
            bar.update(len(lines))
    logging.info(
        "Wrote the features of %d lines to %s.", number, config.output_file
    )


def _load(config: Flags) -> tuple[bert_model.BertModel, BertTokenizer]:
    """Returns the encoder and the tokenizer that the flags name."""
    shape = None
    if config.bert_config_file:
        shape = files.read_bert_config(config.bert_config_file)
    if config.model_dir:
        stored = checkpoint_loading.read(config.model_dir, flag="--model_dir")
    else:
        stored = checkpoint_loading.read(config.init_checkpoint, shape)
    tokenizer = _build_tokenizer(config, stored)
    model = bert_model.BertModel(stored.config, return_all_layers=True)
    checkpoint_loading.load_weights(model, stored)
    return model, tokenizer


def _build_tokenizer(config: Flags, stored: StoredModel) -> BertTokenizer:
    """Builds the tokenizer of --vocab_file or, without it, of the model."""
    if config.vocab_file:
        vocabulary = Vocabulary.from_file(config.vocab_file)
        vocabulary.warn_of_size(stored.config.vocab_size)
        checkpoint_loading.check_vocabulary(
            stored,
            vocabulary.hash,
            f"--vocab_file={config.vocab_file}",
            allow_change=True,
        )
        return BertTokenizer(vocabulary, config.do_lower_case)
    if config.init_checkpoint and stored.vocabulary is None:
        raise UserError(
            "There is no vocab.txt next to the checkpoint "
            f"{config.init_checkpoint}; give --vocab_file."
        )
    tokenizer = stored.build_tokenizer()
    if tokenizer.lower_case and not config.do_lower_case:
        raise UserError(
            f"The model in {stored.path} reads lower-cased text. Received: "
            "--do_lower_case=false; drop it, or give --vocab_file with it."
        )
    return tokenizer


def _read_lines(path: str) -> Iterator[tuple[str, str]]:
    """Yields ("a", "b") for a line "a ||| b", and ("a", "") for a line "a"."""
    for _, line in text_files.read_lines(path):
        text = line.strip()
        pair = _PAIR.match(text)
        yield pair.groups() if pair else (text, "")


def _pack(
    lines: Sequence[tuple[str, str]],
    tokenizer: BertTokenizer,
    max_seq_length: int,
) -> dict[str, tf.Tensor]:
    """Returns the model's inputs, <int32>[B, S] each."""
    texts_a, texts_b = map(list, zip(*lines, strict=True))
    return packing.pack(
        tokenizer.tokenize(texts_a),
        tokenizer.tokenize(texts_b) if any(texts_b) else None,
        max_seq_length,
        tokenizer.vocabulary,
    )


def _compute(
    model: keras.Model,
    tokenizer: BertTokenizer,
    packed: dict[str, tf.Tensor],
    layers: Sequence[int],
) -> Iterator[list[dict]]:
    """Yields the tokens of each row and their activations."""
    encoded = model(packed)["encoder_outputs"]
    # Round in float64, so that JSON shows at most six decimals.
    values = [
        np.round(np.asarray(encoded[layer], np.float64), 6) for layer in layers
    ]
    ids = packed["input_ids"].numpy()
    lengths = packed["input_mask"].numpy().sum(axis=1)
    for row, length in enumerate(lengths):
        yield [
            {
                "token": tokenizer.vocabulary.tokens[ids[row, place]],
                "layers": [
                    {"index": layer, "values": activations[row, place].tolist()}
                    for layer, activations in zip(layers, values, strict=True)
                ],
            }
            for place in range(length)
        ]
