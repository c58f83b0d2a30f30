"""Converts TriviaQA-Wiki to SQuAD's format, to fine-tune on it before SQuAD.

The paper (section 4.2) trains on "paragraphs formed of the first 400 tokens in
documents, that contain at least one of the provided possible answers".
"""

import os
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import text_files

# Matches a word or punctuation mark, nearly as the official tokenizer does.
_TOKEN = re.compile(r"\w+|[^\w\s]")
_WORD = re.compile(r"\w+")


def convert_to_squad(
    input_file: str, evidence_dir: str, max_tokens: int = 400
) -> dict[str, Any]:
    """Converts each document of a question to a paragraph with the question.

    `input_file` has the format of the official wikipedia-train.json, and
    `evidence_dir`, evidence/wikipedia, has the documents. Logs how many of them
    are left out because they have no answer or are not in the folder.

    The paragraph is the unchanged beginning of the document, up to and
    including its `max_tokens`-th word or mark. The answer is the first
    occurrence of the given "Value", or else of the first alias that occurs.
    Answers are compared word by word, ignoring case and marks between words,
    so no answer begins or ends within a word.

    As in the official conversion, the ids are "<QuestionId>--<Filename>".

    Raises:
      UserError: If the file is invalid, or no document has an answer.
    """
    articles = []
    num_questions = num_documents = num_without_answer = num_missing = 0
    for question, answers, names in _read_questions(input_file):
        num_questions += 1
        for name in names:
            num_documents += 1
            path = os.path.join(evidence_dir, name)
            if not files.exists(path):
                num_missing += 1
                continue
            context = _read_beginning(path, max_tokens)
            answer = _find_answer(answers, context)
            if answer is None:
                num_without_answer += 1
                continue
            articles.append(_to_article(question, name, context, answer))
    if not articles:
        raise UserError(
            f"No document of {input_file} has an answer in its first "
            f"{max_tokens} tokens. {num_missing} of {num_documents} documents "
            f"are not in {evidence_dir}."
        )
    logging.info(
        "TriviaQA: %d questions with %d documents; %d have no answer near "
        "their start and %d are missing in --triviaqa_evidence_dir.",
        num_questions,
        num_documents,
        num_without_answer,
        num_missing,
    )
    return {"version": "TriviaQA-Wiki", "data": articles}


def _read_questions(
    input_file: str,
) -> Iterator[tuple[dict[str, Any], list[list[str]], list[str]]]:
    """Yields each question, its answers as words, and its documents' files."""
    values = text_files.read_json(input_file)
    questions = text_files.require_value(values, "Data", list, input_file)
    for number, question in enumerate(questions):
        where = f"{input_file}: Data[{number}]"
        text_files.require_value(question, "QuestionId", str, where)
        text_files.require_value(question, "Question", str, where)
        pages = text_files.require_value(question, "EntityPages", list, where)
        names = (
            text_files.require_value(
                page, "Filename", str, f"{where}.EntityPages[{index}]"
            )
            for index, page in enumerate(pages)
        )
        yield (
            question,
            _read_answers(question.get("Answer"), f"{where}.Answer"),
            list(dict.fromkeys(names)),
        )


def _read_answers(answer: Any, where: str) -> list[list[str]]:
    """Returns the words of each possible answer, in the order of search."""
    texts = [
        text_files.require_value(answer, "Value", str, where),
        *text_files.require_value(answer, "Aliases", list, where),
        # Normalized aliases lack articles and are inexact: try them last.
        *text_files.require_value(answer, "NormalizedAliases", list, where),
    ]
    for text in texts:
        if not isinstance(text, str):
            raise UserError(
                f"{where}: aliases must be strings. Received: {text!r:.40}."
            )
    answers = ([x.lower() for x in _WORD.findall(text)] for text in texts)
    return [answer for answer in answers if answer]


def _read_beginning(path: str, max_tokens: int) -> str:
    """Returns a document up to and including its `max_tokens`-th token."""
    lines = []
    left = max_tokens
    for _, line in text_files.read_lines(path):
        ends = [token.end() for token in _TOKEN.finditer(line)]
        if len(ends) >= left:
            lines.append(line[: ends[left - 1]])
            break
        left -= len(ends)
        lines.append(line)
    return "\n".join(lines)


def _find_answer(
    answers: Iterable[Sequence[str]], context: str
) -> tuple[int, int] | None:
    """Returns the start and end of the first answer that occurs."""
    words = list(_WORD.finditer(context))
    places: dict[str, list[int]] = {}
    lowered = [word[0].lower() for word in words]
    for index, word in enumerate(lowered):
        places.setdefault(word, []).append(index)
    for answer in answers:
        for first in places.get(answer[0], ()):
            stop = first + len(answer)
            if lowered[first:stop] == list(answer):
                return words[first].start(), words[stop - 1].end()
    return None


def _to_article(
    question: dict[str, Any], name: str, context: str, answer: tuple[int, int]
) -> dict[str, Any]:
    start, end = answer
    entry = {
        "id": f"{question['QuestionId']}--{name}",
        "question": question["Question"],
        "answers": [{"text": context[start:end], "answer_start": start}],
    }
    return {
        "title": name.removesuffix(".txt"),
        "paragraphs": [{"context": context, "qas": [entry]}],
    }
