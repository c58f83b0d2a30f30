"""The demo's classifier: which library a sentence documents.

The labels are real and on the machine: a docstring belongs to the library in
whose sources it stands.
"""

import collections
import json
import os
import textwrap
from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoints import model_directory
from bert_tf.demo import docstring_sentences
from bert_tf.errors import UserError
from bert_tf.finetuning import evaluate as task_evaluation
from bert_tf.flags.classifier import ClassifierConfig
from bert_tf.flags.predict import PredictConfig
from bert_tf.io import files
from bert_tf.io import tables
from bert_tf.pretraining import output as pretraining_output

TEXT_COLUMN, LABEL_COLUMN = docstring_sentences.COLUMNS
# Accuracy on held-out documents above that of always answering the commonest
# library that the demo must reach; docs/results.md has what was measured.
ACCURACY_MARGIN = 0.30

# In the words of Python, numpy, Keras and TensorFlow.
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
        # As the model is narrow, higher than the paper's; one pass over so
        # many sentences is enough.
        learning_rate="5e-4",
        num_train_epochs="1",
        # Each length is compiled, which takes longer than the steps save.
        num_length_buckets=3,
        save_checkpoints_steps=250,
        iterations_per_loop=50,
    )


def is_done(output_dir: str) -> bool:
    """Returns whether a run came to its end: its model is written last."""
    path = os.path.join(output_dir, task_evaluation.RESULTS_FILE)
    return os.path.exists(path) and pretraining_output.model_is_written(
        output_dir, files.read_json(path)["global_step"]
    )


def read_accuracy(output_dir: str) -> float:
    """Returns the accuracy on dev of a run."""
    path = os.path.join(output_dir, task_evaluation.RESULTS_FILE)
    return files.read_json(path)["dev"]["accuracy"]


def measure_majority(path: str) -> tuple[str, float]:
    """Returns the commonest library of a table, and its share."""
    labels = collections.Counter(
        row.values[LABEL_COLUMN] for row in tables.read_table(path).rows
    )
    ((label, count),) = labels.most_common(1)
    return label, count / labels.total()


def write_inputs(output_dir: str) -> PredictConfig:
    """Writes sentences to predict; returns the flags to do so."""
    path = os.path.join(output_dir, "sentences.csv")
    header = f"{TEXT_COLUMN}\n"
    files.write_text(path, header + "".join(f'"{x}"\n' for x in SENTENCES))
    return PredictConfig(
        model_dir=os.path.join(output_dir, model_directory.MODEL_FOLDER),
        input_file=path,
        output_file=os.path.join(output_dir, "sentences.jsonl"),
    )


def describe(output_dir: str, dev_file: str, predictions: str) -> str:
    """Returns what came out, for the screen.

    Args:
      output_dir: The folder of the run.
      dev_file: What it was measured on.
      predictions: What run/predict.py wrote.
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
      accuracy: That on dev.
      share: That of always giving the commonest answer.

    Raises:
      UserError: If it is not.
    """
    needed = share + ACCURACY_MARGIN
    if accuracy < needed:
        raise UserError(
            f"The demo's classifier must reach an accuracy of {needed:.3f}, "
            f"{ACCURACY_MARGIN:.2f} above guessing. Received: {accuracy:.3f}; "
            "this is a defect, please report it."
        )


def _read(path: str) -> str:
    return files.read_bytes(path).decode("utf-8")


def _describe(prediction: Mapping[str, Any]) -> str:
    """Returns the probable libraries, the most probable one first."""
    ranked = sorted(
        prediction["probabilities"].items(), key=lambda pair: -pair[1]
    )
    return ", ".join(f"{label} {p:.0%}" for label, p in ranked[:3])
