"""The demo: the whole pipeline from a corpus to a served classifier.

The documentation of Python and of installed packages becomes a corpus, a
vocabulary, records, a tiny BERT that fills in a [MASK], and a classifier
fine-tuned from it. Each step does the same as a script and prints its command
line, so it can be repeated with any other text. Steps with existing results are
skipped. At the end, a server runs the classifier on raw text.
"""

import dataclasses
import json
import os
import sys
import time

import numpy as np

from bert_tf.checkpoints import model_directory
from bert_tf.config import BertConfig
from bert_tf.data import create as pretraining_data
from bert_tf.data import vocabulary_building
from bert_tf.data.records import tfrecords
from bert_tf.demo import classifier as demo_classifier
from bert_tf.demo import corpus as demo_corpus
from bert_tf.demo.classifier import Served
from bert_tf.errors import UserError
from bert_tf.finetuning import run as finetuning
from bert_tf.flags import cli
from bert_tf.flags.data import CreatePretrainingDataConfig
from bert_tf.flags.data import LearnVocabularyConfig
from bert_tf.flags.export import SavedModelConfig
from bert_tf.flags.predict import DemoConfig
from bert_tf.flags.pretrain import PretrainConfig
from bert_tf.inference import predict
from bert_tf.inference.fill_mask import FillMask
from bert_tf.io import files
from bert_tf.pretraining import run as pretraining
from bert_tf.tasks.classification import flags as classification_flags
from bert_tf.training import output as training_output

VOCAB_SIZE = 8000
# Small enough to learn within minutes on two cores.
MODEL = BertConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=512,
    max_position_embeddings=128,
    type_vocab_size=2,
    # About 1 / sqrt(hidden_size), as in a larger BERT. With 0.02, a model this
    # narrow spends thousands of steps on word frequencies before its attention
    # begins to matter.
    initializer_range=0.08,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
SEQ_LENGTH = 64
PREDICTIONS = 10
BATCH_SIZE = 32
TRAIN_STEPS = 4000
# Required margins of the held-out masked-LM and next-sentence accuracies over
# always predicting the most common token or label; docs/results.md has the
# measured accuracies.
MASKED_LM_MARGIN = 0.10
NEXT_SENTENCE_MARGIN = 0.02

SENTENCES = (
    "Returns the [MASK] of the array.",
    "If the file does not [MASK], an error is raised.",
    "The [MASK] of the list is returned as an integer.",
    "A tensor of the same shape and [MASK] as the input.",
)


class _Paths:
    """Paths of all files of the demo."""

    def __init__(self, root: str, steps: int) -> None:
        self.corpus = os.path.join(root, "corpus.txt")
        self.heldout = os.path.join(root, "heldout.txt")
        self.sentences = os.path.join(root, "library_train.csv")
        self.heldout_sentences = os.path.join(root, "library_dev.csv")
        self.vocabulary = os.path.join(root, "vocab.txt")
        self.bert_config = os.path.join(root, "bert_config.json")
        self.records = os.path.join(root, "train.tfrecord")
        self.heldout_records = os.path.join(root, "heldout.tfrecord")
        self.untrained = os.path.join(root, "untrained")
        # Runs of different lengths have different folders.
        self.pretrained = os.path.join(root, f"pretrained_{steps}_steps")
        self.model = os.path.join(self.pretrained, "model")
        self.classifier = os.path.join(root, f"library_{steps}_steps")


def run(config: DemoConfig) -> None:
    """Runs all steps without results yet, and prints the results.

    Raises:
      UserError: If a model is not well above guessing. Not checked if
        `num_train_steps` is set.
    """
    started = time.time()
    steps = config.num_train_steps or TRAIN_STEPS
    paths = _Paths(config.output_dir, steps)
    _make_corpus(paths)
    _learn_vocabulary(paths)
    _create_data(paths)
    before, after = _pretrain(paths, steps)
    guess = measure_guessing(paths.heldout_records)
    predictions = _classify(paths)
    export, served = _serve(paths)
    _show(paths, before, after, guess, time.time() - started)
    _print("-" * 79)
    _print(
        demo_classifier.describe(
            paths.classifier, paths.heldout_sentences, predictions
        )
    )
    _print("-" * 79)
    texts = demo_classifier.SENTENCES
    _print(demo_classifier.describe_served(served, export, texts))
    _print("=" * 79)
    demo_classifier.judge_served(served, predictions)
    if not config.num_train_steps:
        judge(after, guess)
        _, share = demo_classifier.measure_majority(paths.heldout_sentences)
        accuracy = demo_classifier.read_accuracy(paths.classifier)
        demo_classifier.judge(accuracy, share)


def _print(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _announce(title: str, script: str, config: object) -> None:
    _print(f"\n== {title}\n   {cli.command_line(script, config)}")


def _make_corpus(paths: _Paths) -> None:
    _print("\n== Corpus: the documentation of Python and its packages")
    sentence_files = (paths.sentences, paths.heldout_sentences)
    made = (paths.corpus, paths.heldout, *sentence_files)
    if all(map(os.path.exists, made)):
        _print(f"   {paths.corpus} already exists.")
        return
    demo_corpus.write_corpus(paths.corpus, paths.heldout, sentence_files)


def _learn_vocabulary(paths: _Paths) -> None:
    config = LearnVocabularyConfig(
        input_file=paths.corpus,
        output_file=paths.vocabulary,
        vocab_size=VOCAB_SIZE,
        num_unused=99,
    )
    _announce("Vocabulary", "run/learn_vocabulary.py", config)
    if os.path.exists(paths.vocabulary):
        _print(f"   {paths.vocabulary} already exists.")
        return
    vocabulary_building.run(config)


def _create_data(paths: _Paths) -> None:
    for source, target, dupe_factor in (
        (paths.corpus, paths.records, 4),
        (paths.heldout, paths.heldout_records, 2),
    ):
        config = CreatePretrainingDataConfig(
            input_file=source,
            output_file=target,
            vocab_file=paths.vocabulary,
            max_seq_length=SEQ_LENGTH,
            max_predictions_per_seq=PREDICTIONS,
            dupe_factor=dupe_factor,
        )
        script = "run/create_pretraining_data.py"
        _announce("Pretraining records", script, config)
        pretraining_data.create(config)


def _pretrain(
    paths: _Paths, steps: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the held-out results of the untrained and the trained model."""
    files.write_text(paths.bert_config, MODEL.to_json())
    config = PretrainConfig(
        bert_config_file=paths.bert_config,
        input_file=paths.records,
        eval_input_file=paths.heldout_records,
        output_dir=paths.pretrained,
        do_train=True,
        do_eval=True,
        max_seq_length=SEQ_LENGTH,
        max_predictions_per_seq=PREDICTIONS,
        train_batch_size=BATCH_SIZE,
        eval_batch_size=4 * BATCH_SIZE,
        max_eval_steps=1000,
        learning_rate=1e-3,
        num_train_steps=steps,
        num_warmup_steps=steps // 15,
        save_checkpoints_steps=500,
        iterations_per_loop=100,
    )
    untrained = dataclasses.replace(
        config, output_dir=paths.untrained, do_train=False
    )
    results = []
    for title, each in (
        ("The new model, before training", untrained),
        ("Pretraining", config),
    ):
        _announce(title, "run/pretrain.py", each)
        results.append(_run_once(each))
    return results[0], results[1]


def _run_once(config: PretrainConfig) -> dict[str, float]:
    """Returns the evaluation results; runs only if there are none yet."""
    path = os.path.join(config.output_dir, pretraining.EVAL_RESULTS_FILE)
    steps = config.num_train_steps if config.do_train else 0
    if os.path.exists(path) and (
        not steps or training_output.model_is_written(config.output_dir, steps)
    ):
        _print(f"   {path} already exists.")
    else:
        pretraining.train_and_evaluate(config)
    return read_eval_results(path)


def _classify(paths: _Paths) -> str:
    """Fine-tunes the classifier; returns the file with a few predictions."""
    config = demo_classifier.configure(
        paths.model, paths.sentences, paths.heldout_sentences, paths.classifier
    )
    title = "Fine-tuning: which library does this sentence document?"
    _announce(title, "run/finetune_classifier.py", config)
    if demo_classifier.is_done(paths.classifier):
        _print(f"   {paths.classifier} already exists.")
    else:
        finetuning.run(config, classification_flags.build_task)
    prediction = demo_classifier.write_inputs(paths.classifier)
    _announce("Prediction", "run/predict.py", prediction)
    predict.run(prediction)
    return prediction.output_file


def _serve(paths: _Paths) -> tuple[SavedModelConfig, Served]:
    """Exports and serves the classifier; returns the flags and answers."""
    export = demo_classifier.configure_export(
        os.path.join(paths.classifier, model_directory.MODEL_FOLDER),
        paths.classifier,
    )
    _announce("Export", demo_classifier.EXPORT_SCRIPT, export)
    if demo_classifier.is_exported(export):
        _print(f"   {export.output_dir} already exists.")
    else:
        demo_classifier.run_script(demo_classifier.EXPORT_SCRIPT, export)
    server = demo_classifier.configure_server(export)
    _announce("Serving", demo_classifier.SERVE_SCRIPT, server)
    log_file = os.path.join(paths.classifier, "server.log")
    return export, demo_classifier.ask(
        server, demo_classifier.SENTENCES, log_file
    )


def read_eval_results(path: str) -> dict[str, float]:
    """Reads results in the original's format: one `name = value` per line."""
    lines = files.read_bytes(path).decode("utf-8").splitlines()
    pairs = (line.split(" = ") for line in lines)
    return {name: float(value) for name, value in pairs}


def measure_guessing(record_file: str) -> dict[str, float]:
    """Returns the accuracy of always predicting the most common label.

    The most common label is that of the records themselves, so no constant
    prediction is better.
    """
    tokens, labels = [], []
    for batch in tfrecords.read_examples(record_file):
        weights = batch["masked_lm_weights"] > 0
        tokens.append(batch["masked_lm_ids"][weights])
        labels.append(batch["next_sentence_labels"].ravel())
    answers = {
        "masked_lm_accuracy": np.concatenate(tokens),
        "next_sentence_accuracy": np.concatenate(labels),
    }
    return {
        name: float(np.bincount(labels).max() / len(labels))
        for name, labels in answers.items()
    }


def _show(
    paths: _Paths,
    before: dict[str, float],
    after: dict[str, float],
    guess: dict[str, float],
    seconds: float,
) -> None:
    """Prints the created files and the scores, on one screen."""
    _print("\n" + "=" * 79)
    _print(f"Done in {seconds / 60:.1f} minutes. Created files:")
    for label, path in (
        ("corpus", paths.corpus),
        ("vocabulary", paths.vocabulary),
        ("records", paths.records),
        ("model directory", paths.model),
        (
            "learning curves",
            os.path.join(paths.pretrained, "learning_curves.png"),
        ),
        ("classifier", os.path.join(paths.classifier, "model")),
        ("SavedModel", os.path.join(paths.classifier, "served")),
    ):
        _print(f"  {label:<16} {path}")
    _print(f"\nOn held-out text:{'before':>22}{'after':>10}{'guessing':>11}")
    for name in (
        "masked_lm_accuracy",
        "masked_lm_loss",
        "next_sentence_accuracy",
        "next_sentence_loss",
    ):
        row = f"  {name:<28}{before[name]:>9.3f}{after[name]:>10.3f}"
        _print(row + (f"{guess[name]:>11.3f}" if name in guess else ""))
    _print("\nFilling in the [MASK]:")
    for text, masks in zip(
        SENTENCES, FillMask(paths.model)(list(SENTENCES), top_k=4), strict=True
    ):
        candidates = ", ".join(
            f"{candidate.token} {candidate.probability:.0%}"
            for candidate in masks[0]
        )
        _print(f"  {text}\n      {candidates}")
    text = json.dumps(SENTENCES[0])
    _print("\nTry your own:")
    program = cli.program("run/fill_mask.py")
    _print(f"  {program} --model_dir={paths.model} --text={text}")


def judge(after: dict[str, float], guess: dict[str, float]) -> None:
    """Checks that a model is well above guessing.

    Raises:
      UserError: If it is not.
    """
    for name, margin in (
        ("masked_lm_accuracy", MASKED_LM_MARGIN),
        ("next_sentence_accuracy", NEXT_SENTENCE_MARGIN),
    ):
        needed = guess[name] + margin
        if after[name] < needed:
            raise UserError(
                f"The demo's model must reach a held-out {name} of "
                f"{needed:.3f}, {margin:.2f} above guessing. Received: "
                f"{after[name]:.3f}; this is a bug, please report it."
            )
