"""Small files in SQuAD's layout."""

import numpy as np

from bert_tf.io import files


def dataset(rows, labeled=True):
    """Returns a paragraph with one question, q0 and so on, for each row.

    Args:
      rows: Contexts, questions and answers; None means no answer.
      labeled: Whether the questions have answers.
    """
    paragraphs = []
    for number, (context, text, answer) in enumerate(rows):
        question = {"id": f"q{number}", "question": text}
        if labeled:
            starts = [] if answer is None else [context.index(answer)]
            question["is_impossible"] = answer is None
            question["answers"] = [
                {"text": answer, "answer_start": start} for start in starts
            ]
        paragraphs.append({"context": context, "qas": [question]})
    return [{"paragraphs": paragraphs}]


def write(path, data):
    """Writes a data set; returns the path."""
    files.write_json(str(path), {"version": "x", "data": data})
    return str(path)


def logits_at(length, **values):
    """Returns logits of -9, except at the named positions: _3=2.5."""
    logits = np.full([length], -9.0, np.float32)
    for place, value in values.items():
        logits[int(place[1:])] = value
    return logits
