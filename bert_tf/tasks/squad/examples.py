"""SQuAD 1.1 and 2.0: from the official JSON to one example per question."""

import bisect
import dataclasses
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import json_file

# What parts words (run_squad.py:232-235 of the original).
_WORD = re.compile("[^ \t\r\n\u202f]+")


@dataclasses.dataclass(frozen=True)
class SquadExample:
    """A question and the paragraph that may answer it.

    Attributes:
      qas_id: The question's id.
      question_text: The question.
      doc_tokens: The paragraph's words, parted by white space.
      doc_token_starts: Where each word begins in the paragraph, in characters.
      orig_answer_text: The answer; "" if there is none, None if not asked for.
      start_position: The answer's first word; -1 or None as above.
      end_position: Its last word.
      is_impossible: Whether the paragraph is known not to answer.
      answers: What people answered, to score a prediction with; empty if there
        is no answer, None if the file does not say.
    """

    qas_id: str
    question_text: str
    doc_tokens: tuple[str, ...]
    doc_token_starts: tuple[int, ...]
    orig_answer_text: str | None = None
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool = False
    answers: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class SquadExamples:
    """The examples of a file.

    Attributes:
      examples: In the order of the file.
      unmatched: The ids of the questions that training goes without, as the
        answer is not where the file says.
    """

    examples: tuple[SquadExample, ...]
    unmatched: tuple[str, ...] = ()


def read_squad_examples(
    input_file: str,
    is_training: bool,
    version_2_with_negative: bool = False,
    with_answers: bool = True,
) -> SquadExamples:
    """Reads a SQuAD file; see `read_dataset` and `build_examples`."""
    return build_examples(
        read_dataset(input_file, with_answers),
        is_training,
        version_2_with_negative,
        input_file,
    )


def read_dataset(
    input_file: str, with_answers: bool = True
) -> list[dict[str, Any]]:
    """Returns what stands under "data" in a SQuAD file, checked.

    Each article has "paragraphs", each of them a "context" and "qas", each of
    them an "id" of its own and a "question"; answers, where there are any,
    have "text".

    Args:
      input_file: The file.
      with_answers: Whether what it says of answers counts; it is left out if
        not, whatever it is.

    Raises:
      UserError: If the file is otherwise; with the place in it.
    """
    dataset = json_file.get(
        json_file.read_json(input_file), "data", list, input_file
    )
    seen = set()
    for where, question in _check_paragraphs(dataset, input_file):
        qas_id = json_file.get(question, "id", str, where)
        if qas_id in seen:
            raise UserError(
                f"{where}: the id {qas_id!r} belongs to an earlier question; "
                "each question needs its own."
            )
        seen.add(qas_id)
        json_file.get(question, "question", str, where)
        if with_answers:
            _check_answers(question, where)
        else:
            for name in ("answers", "is_impossible"):
                question.pop(name, None)
    if not seen:
        raise UserError(f"{input_file} holds no question.")
    return dataset


def _check_answers(question: dict[str, Any], where: str) -> None:
    """Raises `UserError` if what is said of answers is not as expected."""
    if question.get("answers") is not None:
        json_file.get(question, "answers", list, where)
    for number, answer in enumerate(question.get("answers") or ()):
        json_file.get(answer, "text", str, f"{where}.answers[{number}]")
    is_impossible = question.get("is_impossible")
    if is_impossible not in (None, False, True):
        raise UserError(
            f"{where}: 'is_impossible' must be true or false. Received: "
            f"{is_impossible!r:.40}."
        )


def _check_paragraphs(
    dataset: list[Any], source: str
) -> Iterator[tuple[str, Any]]:
    """Yields each question with its place, and checks what is above it."""
    for article_number, article in enumerate(dataset):
        in_article = f"{source}: data[{article_number}]"
        paragraphs = json_file.get(article, "paragraphs", list, in_article)
        for number, paragraph in enumerate(paragraphs):
            where = f"{in_article}.paragraphs[{number}]"
            json_file.get(paragraph, "context", str, where)
            questions = json_file.get(paragraph, "qas", list, where)
            for index, question in enumerate(questions):
                yield f"{where}.qas[{index}]", question


def build_examples(
    dataset: Sequence[dict[str, Any]],
    is_training: bool,
    version_2_with_negative: bool = False,
    source: str = "the SQuAD data",
) -> SquadExamples:
    """Makes an example of each question.

    In training a question whose answer is not in its paragraph, where the
    file says, is left out and counted. Outside training nobody looks where
    the answers are; lists of them that are all empty say nothing, unless the
    file says "is_impossible" somewhere.

    Source: read_squad_examples (run_squad.py:227-306 of the original).

    Args:
      dataset: What `read_dataset` returned.
      is_training: Whether the answers' positions are wanted.
      version_2_with_negative: Whether some questions have no answer.
      source: What errors call the data.

    Raises:
      UserError: If, in training, a question does not have one answer, or with
        `version_2_with_negative` nothing is said of answers.
    """
    examples = []
    unmatched = []
    is_known = _knows_answers(dataset)
    for article in dataset:
        for paragraph in article["paragraphs"]:
            words = _split(paragraph["context"])
            for question in paragraph["qas"]:
                example = SquadExample(
                    question["id"],
                    question["question"],
                    *words,
                    answers=_read_texts(question) if is_known else None,
                )
                if is_training:
                    answer = _read_answer(
                        question, version_2_with_negative, source
                    )
                    example = _add_answer(
                        example, answer, len(paragraph["context"])
                    )
                if example is None:
                    unmatched.append(question["id"])
                else:
                    examples.append(example)
    return SquadExamples(tuple(examples), tuple(unmatched))


def make_example(qas_id: str, question_text: str, context: str) -> SquadExample:
    """Makes an example whose answer nobody knows."""
    return SquadExample(qas_id, question_text, *_split(context))


def _split(context: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns a paragraph's words and where they begin."""
    words = list(_WORD.finditer(context))
    return (
        tuple(word[0] for word in words),
        tuple(word.start() for word in words),
    )


def to_dataset(examples: Iterable[SquadExample]) -> list[dict[str, Any]]:
    """Returns what `squad_metrics` reads: the ids and answers of examples."""
    questions = []
    for example in examples:
        question = {"id": example.qas_id}
        if example.answers is not None:
            question["answers"] = [{"text": text} for text in example.answers]
        questions.append(question)
    return [{"paragraphs": [{"qas": questions}]}]


def _knows_answers(dataset: Sequence[dict[str, Any]]) -> bool:
    """Returns whether any question is answered, or said to have no answer."""
    return any(
        question.get("answers") or question.get("is_impossible") is not None
        for article in dataset
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    )


def _read_texts(question: dict[str, Any]) -> tuple[str, ...] | None:
    answers = question.get("answers")
    if answers is None:
        return () if question.get("is_impossible") else None
    return tuple(answer["text"] for answer in answers)


def _read_answer(
    question: dict[str, Any], version_2_with_negative: bool, source: str
) -> tuple[str, int] | None:
    """Returns the answer's text and offset, None if there is no answer."""
    answers = question.get("answers") or ()
    is_impossible = question.get("is_impossible")
    where = f"{source}, question {question['id']!r}"
    if version_2_with_negative:
        if is_impossible is None and question.get("answers") is None:
            raise UserError(
                f"{where}: expected 'answers', a list that may be empty, or "
                "'is_impossible'. Received: neither."
            )
        if is_impossible or (is_impossible is None and not answers):
            return None
    if len(answers) != 1:
        hint = "" if answers else " (or --version_2_with_negative)"
        raise UserError(
            f"{where}: training needs exactly 1 answer{hint}. Received: "
            f"{len(answers)}."
        )
    return answers[0]["text"], json_file.get(
        answers[0], "answer_start", int, where
    )


def _add_answer(
    example: SquadExample, answer: tuple[str, int] | None, context_length: int
) -> SquadExample | None:
    """Returns the example with its answer, None if the answer is not there."""
    if answer is None:
        return dataclasses.replace(
            example,
            orig_answer_text="",
            start_position=-1,
            end_position=-1,
            is_impossible=True,
        )
    text, offset = answer
    last = offset + len(text) - 1
    # The word that holds a character, or else the last one before it.
    start = bisect.bisect(example.doc_token_starts, offset) - 1
    end = bisect.bisect(example.doc_token_starts, last) - 1
    if not text.strip() or start < 0 or last >= context_length:
        return None
    # The words around an answer say more than it, as "(1895-1943)." of 1895.
    words = " ".join(example.doc_tokens[start : end + 1])
    if " ".join(text.split()) not in words:
        return None
    return dataclasses.replace(
        example, orig_answer_text=text, start_position=start, end_position=end
    )


def report_training(
    path: str, read: SquadExamples, max_ids: int | None
) -> None:
    """Says in the log what there is to train on, and what is left out.

    Args:
      path: The file.
      read: What it holds.
      max_ids: How many ids of questions to name at most; None for all.

    Raises:
      UserError: If there is nothing.
    """
    num_questions = len(read.examples) + len(read.unmatched)
    if not read.examples:
        raise UserError(
            f"{path} has nothing to train on: of none of its {num_questions} "
            "questions the answer is in the paragraph where the file says."
        )
    if read.unmatched:
        logging.warning(
            "%s: %d of %d questions are left out, as the answer is not in the "
            "paragraph where the file says: %s.",
            path,
            len(read.unmatched),
            num_questions,
            _shorten(read.unmatched, max_ids),
        )
    logging.info("%s: %d questions to train on.", path, len(read.examples))


def _shorten(names: Sequence[str], max_shown: int | None) -> str:
    shown = names[:max_shown]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def check_answers(
    path: str, examples: Sequence[SquadExample], version_2_with_negative: bool
) -> None:
    """Raises `UserError` if a question of SQuAD 1.1 has no answer."""
    without = [one.qas_id for one in examples if one.answers == ()]
    if without and not version_2_with_negative:
        raise UserError(
            f"{path} has {len(without)} questions that nothing answers, which "
            "SQuAD 2.0 has: set --version_2_with_negative. The first is "
            f"{without[0]!r}."
        )
    num_unknown = sum(one.answers is None for one in examples)
    if 0 < num_unknown < len(examples):
        logging.warning(
            '%s cannot be scored: %d of its %d questions have no "answers".',
            path,
            num_unknown,
            len(examples),
        )
