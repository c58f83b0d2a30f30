"""TriviaQA-Wiki in SQuAD's format, to fine-tune on it before SQuAD.

The paper (section 4.2) trains on "paragraphs formed of the first 400 tokens in
documents, that contain at least one of the provided possible answers".
"""

import dataclasses
import os
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.io import json_file
from bert_tf.io import text_lines

# A word or a mark: about what the official conversion counts.
_TOKEN = re.compile(r"\w+|[^\w\s]")
_WORD = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True)
class TriviaQa:
    """The outcome of a conversion.

    Attributes:
      squad: What a SQuAD file holds: "version" and "data".
      num_questions: How many questions were read.
      num_documents: How many documents they have together.
      num_without_answer: How many of these have no answer in their beginning
        and were left out.
      num_missing: How many of these are not in the folder.
    """

    squad: dict[str, Any]
    num_questions: int
    num_documents: int
    num_without_answer: int
    num_missing: int


def convert_to_squad(
    input_file: str, evidence_dir: str, max_tokens: int = 400
) -> TriviaQa:
    """Makes one paragraph, with its question, of each document of a question.

    The paragraph is the document's beginning as it stands, up to and with its
    `max_tokens`-th word or mark. Its answer is the first occurrence of the
    question's value or else of the first alias that occurs. Answers are
    compared word by word, without regard to case and marks between words, so
    none begins or ends within a word.

    As in the official conversion the ids are "<QuestionId>--<Filename>".

    Args:
      input_file: As wikipedia-train.json of the official layout.
      evidence_dir: The folder of the documents, evidence/wikipedia.
      max_tokens: How much of a document is taken.

    Raises:
      UserError: If the file is not as it should be, or nothing is left.
    """
    articles = []
    num_questions = num_documents = num_without_answer = num_missing = 0
    for question, answers, names in _read_questions(input_file):
        num_questions += 1
        for name in names:
            num_documents += 1
            path = os.path.join(evidence_dir, name)
            if not tf.io.gfile.exists(path):
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
            f"{max_tokens} tokens: of {num_documents} documents {num_missing} "
            f"are not in {evidence_dir}."
        )
    return TriviaQa(
        {"version": "TriviaQA-Wiki", "data": articles},
        num_questions,
        num_documents,
        num_without_answer,
        num_missing,
    )


def _read_questions(
    input_file: str,
) -> Iterator[tuple[dict[str, Any], list[list[str]], list[str]]]:
    """Yields each question, its answers' words and its documents' names."""
    values = json_file.read_json(input_file)
    questions = json_file.get(values, "Data", list, input_file)
    for number, question in enumerate(questions):
        where = f"{input_file}: Data[{number}]"
        json_file.get(question, "QuestionId", str, where)
        json_file.get(question, "Question", str, where)
        pages = json_file.get(question, "EntityPages", list, where)
        names = (
            json_file.get(
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
    """Returns the words of each possible answer, those to look for first."""
    texts = [
        json_file.get(answer, "Value", str, where),
        *json_file.get(answer, "Aliases", list, where),
        # Lower case, without marks and articles.
        *json_file.get(answer, "NormalizedAliases", list, where),
    ]
    for text in texts:
        if not isinstance(text, str):
            raise UserError(
                f"{where}: aliases must be strings. Received: {text!r:.40}."
            )
    answers = (_words(text) for text in texts)
    return [answer for answer in answers if answer]


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _read_beginning(path: str, max_tokens: int) -> str:
    """Returns a document up to and with its n-th token."""
    lines = []
    left = max_tokens
    for _, line in text_lines.read_lines(path):
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
    """Returns where the first answer that occurs begins and ends."""
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
