"""A vocabulary, records, model and flags small enough to pretrain in a test."""

import os

import tensorflow as tf

from bert_tf.commands.pretrain import PretrainConfig
from bert_tf.config import BertConfig
from bert_tf.data.generators.counts import RecordCounts
from bert_tf.data.records.manifest import Manifest
from bert_tf.io import files
from bert_tf.text.vocabulary import Vocabulary
from tests.support import record_files
from tests.support import scripts

VOCABULARY = Vocabulary(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    + [f"w{number}" for number in range(59)]
)
CONFIG = BertConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
    type_vocab_size=2,
    initializer_range=0.3,
)


def write_records(
    path,
    numbers=range(20),
    with_manifest=True,
    vocabulary=VOCABULARY,
    **lengths,
):
    """Writes records and, by default, their vocabulary and manifest."""
    lengths = {"max_seq_length": 8, "max_predictions_per_seq": 3} | lengths
    record_files.write(path, numbers, **lengths)
    if not with_manifest:
        return path
    vocabulary.write(f"{path}.vocab.txt")
    num_bytes = tf.io.gfile.stat(path).length
    Manifest(
        version=1,
        flags={"random_seed": 17},
        num_output_files=1,
        vocabulary_hash=vocabulary.hash,
        inputs=[{"name": "a.txt", "bytes": 12, "sha256": "12ab"}],
        fingerprint=f"{list(numbers)} {lengths}",
        generator="streaming",
        seed=17,
        vocab_size=len(vocabulary),
        do_lower_case=True,
        strip_accents=True,
        files={path: {"records": len(numbers), "bytes": num_bytes}},
        num_documents=5,
        num_sentences=60,
        counts=RecordCounts(num_instances=len(numbers)).to_dict(),
        random_next_share=0.5,
        **lengths,
    ).write(path)
    return path


def write_flags(folder, **flags):
    """Writes the input files of a run and returns its flags by name.

    Args:
      folder: The folder for the model configuration and the records.
      **flags: Further flags, or other values.
    """
    config_file = os.path.join(folder, "bert_config.json")
    if not os.path.exists(config_file):
        files.write_text(config_file, CONFIG.to_json())
    if "input_file" not in flags:
        for name, numbers in (("a", range(20)), ("b", range(20, 33))):
            write_records(os.path.join(folder, f"{name}.tfrecord"), numbers)
    return {
        "bert_config_file": config_file,
        "input_file": os.path.join(folder, "[ab].tfrecord"),
        "output_dir": os.path.join(folder, "out"),
        "max_seq_length": 8,
        "max_predictions_per_seq": 3,
        "do_train": True,
        "train_batch_size": 4,
        "learning_rate": 0.01,
        "num_train_steps": 6,
        "num_warmup_steps": 2,
        "iterations_per_loop": 2,
        "save_checkpoints_steps": 2,
    } | flags


def make_config(folder, **flags):
    """Returns the configuration of a run; see `write_flags`."""
    return PretrainConfig(**write_flags(folder, **flags))


def command_line(script, **flags):
    """Returns the arguments that call a script with flags."""
    return scripts.command_line(script, flags)
