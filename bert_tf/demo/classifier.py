"""The demo's classifier: predicts the library that a sentence documents.

The label of a docstring is the library that contains it.
"""

import collections
import json
import os
import textwrap
from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoints import model_directory
from bert_tf.demo import corpus as demo_corpus
from bert_tf.errors import UserError
from bert_tf.finetuning import evaluate as task_evaluation
from bert_tf.flags.classifier import ClassifierConfig
from bert_tf.flags.predict import PredictConfig
from bert_tf.io import files
from bert_tf.io import tables
from bert_tf.training import output as training_output

TEXT_COLUMN, LABEL_COLUMN = demo_corpus.COLUMNS
# Required margin of the held-out accuracy over always predicting the most
# common library; docs/results.md has the measured accuracy.
ACCURACY_MARGIN = 0.30

# Typical of Python, numpy, Keras and TensorFlow, in this order.
SENTENCES = (
    "Opens the file and returns an iterator over its lines as strings.",
    "Returns the indices that would sort the elements of the ndarray.",
    "A layer that normalizes the activations of the previous layer.",
    "Runs the graph in a session and fetches the values of the ops.",
)


def configure(
    model_dir: str, train_file: str, dev_file: str, output_dir: str
) -> ClassifierConfig:
    """Returns the flags of the demo's fine-tuning."""
    return ClassifierConfig(
        task_name="custom",
        train_file=train_file,
        dev_file=dev_file,
        text_column=TEXT_COLUMN,
        label_column=LABEL_COLUMN,
        pretrained_model_dir=model_dir,
        output_dir=output_dir,
        do_train=True,
        do_eval=True,
        max_seq_length=64,
        eval_batch_size=64,
        # Higher than in the paper, because the model is narrow; one epoch over
        # this many sentences is enough.
        learning_rate="5e-4",
        num_train_epochs="1",
        # Few lengths, because compiling each one costs more than it saves.
        num_length_buckets=3,
        save_checkpoints_steps=250,
        iterations_per_loop=50,
    )


def is_done(output_dir: str) -> bool:
    """Returns true if a run has finished; it writes the model last."""
    path = os.path.join(output_dir, task_evaluation.RESULTS_FILE)
    return os.path.exists(path) and training_output.model_is_written(
        output_dir, files.read_json(path)["global_step"]
    )


def read_accuracy(output_dir: str) -> float:
    """Returns the dev accuracy of a run."""
    path = os.path.join(output_dir, task_evaluation.RESULTS_FILE)
    return files.read_json(path)["dev"]["accuracy"]


def measure_majority(path: str) -> tuple[str, float]:
    """Returns the most common library of a table, and its share."""
    labels = collections.Counter(
        row.values[LABEL_COLUMN] for row in tables.read_table(path).rows
    )
    ((label, count),) = labels.most_common(1)
    return label, count / labels.total()


def write_inputs(output_dir: str) -> PredictConfig:
    """Writes sentences to predict and returns the flags for prediction."""
    path = os.path.join(output_dir, "sentences.csv")
    header = f"{TEXT_COLUMN}\n"
    files.write_text(path, header + "".join(f'"{x}"\n' for x in SENTENCES))
    return PredictConfig(
        model_dir=os.path.join(output_dir, model_directory.MODEL_FOLDER),
        input_file=path,
        output_file=os.path.join(output_dir, "sentences.jsonl"),
    )


def describe(output_dir: str, dev_file: str, predictions: str) -> str:
    """Formats the results for the screen.

    Args:
      output_dir: The folder of the run.
      dev_file: The table of the evaluation.
      predictions: The output file of run/predict.py.
    """
    label, share = measure_majority(dev_file)
    matrix = os.path.join(output_dir, "confusion_matrix.txt")
    picture = os.path.splitext(matrix)[0] + ".png"
    lines = [
        "Which library does a sentence document? On held-out documents:",
        f"  {'accuracy':<28}{read_accuracy(output_dir):>9.3f}",
        f"  {f'always {label}':<28}{share:>9.3f}",
        "",
        textwrap.indent(_read(matrix).rstrip(), "  "),
        "",
        f"  As a picture: {picture}",
        "",
    ]
    for sentence, line in zip(
        SENTENCES, _read(predictions).splitlines(), strict=True
    ):
        lines += [f"  {sentence}", f"      {_describe(json.loads(line))}"]
    return "\n".join(lines)


def judge(accuracy: float, share: float) -> None:
    """Checks that a classifier is well above guessing.

    Args:
      accuracy: The dev accuracy.
      share: The accuracy of always predicting the most common library.

    Raises:
      UserError: If it is not.
    """
    needed = share + ACCURACY_MARGIN
    if accuracy < needed:
        raise UserError(
            f"The demo's classifier must reach an accuracy of {needed:.3f}, "
            f"{ACCURACY_MARGIN:.2f} above guessing. Received: {accuracy:.3f}; "
            "this is a bug, please report it."
        )


def _read(path: str) -> str:
    return files.read_bytes(path).decode("utf-8")


def _describe(prediction: Mapping[str, Any]) -> str:
    """Formats the three most probable libraries."""
    ranked = sorted(
        prediction["probabilities"].items(), key=lambda pair: -pair[1]
    )
    return ", ".join(f"{label} {p:.0%}" for label, p in ranked[:3])
