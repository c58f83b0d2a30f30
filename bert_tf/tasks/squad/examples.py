"""SQuAD 1.1 and 2.0 examples, and the files that have them."""

import bisect
import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar

from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import run_folder
from bert_tf.io import tables
from bert_tf.io import text_files
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.task_files import TRAIN
from bert_tf.tasks.task_files import SplitKey
from bert_tf.tasks.task_files import TaskFiles

# Matches a word, as run_squad.py:232-235 of the original separates words.
_WORD = re.compile("[^ \t\r\n\u202f]+")
# Han, Japanese, Thai, Lao, Tibetan, Burmese and Khmer are written without
# spaces. A "word" with such characters counts as a passage if it has over
# _LONGEST_NAME characters, or if their share of the paragraph is at least
# _UNSPACED_SHARE (at most 5% in SQuAD). Otherwise, the word is a name.
_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_LONGEST_NAME = 20
_UNSPACED_SHARE = 0.2
# Column names of tables to predict, and keys of rows that are mappings.
QUESTION, CONTEXT, ID = "question", "context", "id"
# By default, at most this many ids of left-out questions are logged.
MAX_IDS = 5


@dataclasses.dataclass(frozen=True)
class SquadExample:
    """A question and the paragraph that may answer it.

    Attributes:
      qas_id: The question's id.
      question_text: The question.
      doc_tokens: The paragraph's words, separated at white space.
      doc_token_starts: The offset of each word in the paragraph, in characters.
      context: The paragraph.
      orig_answer_text: The answer; "" if there is none, None outside training.
      start_position: The index of the answer's first word; -1 if there is no
        answer, None outside training.
      end_position: The last word's index; -1 or None like `start_position`.
      is_impossible: True if the paragraph does not answer the question.
      answers: The reference answers for scoring; empty if there is no answer,
        None if the file does not have them.
      answer_start: The offset of the answer's first character, if the language
        has no spaces and a word may be a whole paragraph; otherwise None.
    """

    qas_id: str
    question_text: str
    doc_tokens: tuple[str, ...]
    doc_token_starts: tuple[int, ...]
    context: str
    orig_answer_text: str | None = None
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool = False
    answers: tuple[str, ...] | None = None
    answer_start: int | None = None

    def is_unspaced(self, *words: int) -> bool:
        """Returns True if any of these words is a passage without spaces."""
        return any(
            _WITHOUT_SPACES.search(word)
            and (len(word) > _LONGEST_NAME or self._is_unspaced)
            for word in (self.doc_tokens[index] for index in words)
        )

    @functools.cached_property
    def _is_unspaced(self) -> bool:
        count = len(_WITHOUT_SPACES.findall(self.context))
        return count >= _UNSPACED_SHARE * len(self.context)


def read_dataset(
    input_file: str, with_answers: bool = True
) -> list[dict[str, Any]]:
    """Returns the validated "data" of a SQuAD file.

    Each article has "paragraphs", each paragraph has a "context" and "qas",
    and each question a unique "id" and a "question". Answers, if there are
    any, have a "text". Without `with_answers`, answers and "is_impossible" are
    dropped and not checked.

    Raises:
      UserError: If the file is invalid; the message names the invalid place.
    """
    dataset = text_files.require_value(
        text_files.read_json(input_file), "data", list, input_file
    )
    seen: dict[str, dict[str, Any]] = {}
    repeated = []
    for where, question in _check_paragraphs(dataset, input_file):
        if isinstance(question, dict) and type(question.get("id")) is int:
            question["id"] = str(question["id"])
        qas_id = text_files.require_value(question, "id", str, where)
        if qas_id in seen:
            repeated.append(seen[qas_id])
        seen[qas_id] = question
        text_files.require_value(question, "question", str, where)
        if with_answers:
            _check_answers(question, where)
        else:
            for name in ("answers", "is_impossible"):
                question.pop(name, None)
    if not seen:
        raise UserError(f"{input_file} holds no question.")
    if repeated:
        for paragraph in (p for x in dataset for p in x["paragraphs"]):
            paragraph["qas"] = [
                x for x in paragraph["qas"] if seen[x["id"]] is x
            ]
        _warn_once(
            f"{input_file}: {len(repeated)} questions have the id of a later "
            f"one, which counts, such as {repeated[0]['id']!r}."
        )
    return dataset


@functools.cache
def _warn_once(message: str) -> None:
    """Logs a warning only once, even if a file is read twice."""
    logging.warning("%s", message)


def _check_answers(question: dict[str, Any], where: str) -> None:
    if question.get("answers") is not None:
        text_files.require_value(question, "answers", list, where)
    for number, answer in enumerate(question.get("answers") or ()):
        text_files.require_value(
            answer, "text", str, f"{where}.answers[{number}]"
        )
    is_impossible = question.get("is_impossible")
    if is_impossible not in (None, False, True):
        raise UserError(
            f"{where}: 'is_impossible' must be true or false. Received: "
            f"{is_impossible!r:.40}."
        )


def _check_paragraphs(
    dataset: list[Any], source: str
) -> Iterator[tuple[str, Any]]:
    """Yields each question with its place in the file; checks paragraphs."""
    for article_number, article in enumerate(dataset):
        article_place = f"{source}: data[{article_number}]"
        paragraphs = text_files.require_value(
            article, "paragraphs", list, article_place
        )
        for number, paragraph in enumerate(paragraphs):
            where = f"{article_place}.paragraphs[{number}]"
            text_files.require_value(paragraph, "context", str, where)
            questions = text_files.require_value(paragraph, "qas", list, where)
            for index, question in enumerate(questions):
                yield f"{where}.qas[{index}]", question


def build_examples(
    dataset: Sequence[dict[str, Any]],
    is_training: bool,
    version_2_with_negative: bool = False,
    source: str = "the SQuAD data",
    max_ids: int | None = MAX_IDS,
) -> tuple[SquadExample, ...]:
    """Converts each question to an example.

    In training, questions are left out if the paragraph does not have the
    answer at its offset, and `max_ids` of their ids (if None, all) are logged.
    Otherwise, the offsets are not read. If all lists of answers are empty and
    no question has "is_impossible", all answers are unknown.

    Source: read_squad_examples (run_squad.py:227-306 of the original).

    Raises:
      UserError: In training, if no question is left or a question has no
        answer. With `version_2_with_negative`, a question may have no answer,
        but must have "answers" or "is_impossible".
    """
    examples = []
    unmatched = []
    paragraphs = [x for article in dataset for x in article["paragraphs"]]
    has_answers = any(
        question.get("answers") or question.get("is_impossible") is not None
        for paragraph in paragraphs
        for question in paragraph["qas"]
    )
    num_several = 0
    for paragraph in paragraphs:
        words = split_words(paragraph["context"])
        for question in paragraph["qas"]:
            example = SquadExample(
                question["id"],
                question["question"],
                *words,
                answers=_read_texts(question) if has_answers else None,
            )
            if is_training:
                num_several += len(question.get("answers") or ()) > 1
                answer = _read_answer(question, version_2_with_negative, source)
                example = _add_answer(example, answer)
            if example is None:
                unmatched.append(question["id"])
            else:
                examples.append(example)
    if num_several:
        _warn_once(
            f"{source}: {num_several} questions have several answers; the "
            "first one is trained on."
        )
    if is_training:
        _report_training(source, len(examples), unmatched, max_ids)
    return tuple(examples)


def _report_training(
    source: str, count: int, unmatched: Sequence[str], max_ids: int | None
) -> None:
    total = count + len(unmatched)
    if not count:
        raise UserError(
            f"{source} has nothing to train on: none of its {total} "
            "questions has its answer in the paragraph at the given offset."
        )
    if unmatched:
        logging.warning(
            "%s: %d of %d questions are left out because their answer is not "
            "in the paragraph at the given offset: %s.",
            source,
            len(unmatched),
            total,
            run_folder.shown(unmatched, max_ids),
        )
    logging.info("%s: %d questions to train on.", source, count)


def make_example(qas_id: str, question_text: str, context: str) -> SquadExample:
    """Returns an example without an answer, for prediction."""
    return SquadExample(qas_id, question_text, *split_words(context))


def split_words(context: str) -> tuple[tuple[str, ...], tuple[int, ...], str]:
    """Returns a paragraph's words, their offsets, and the paragraph."""
    words = list(_WORD.finditer(context))
    return (
        tuple(word[0] for word in words),
        tuple(word.start() for word in words),
        context,
    )


def _read_texts(question: dict[str, Any]) -> tuple[str, ...] | None:
    answers = question.get("answers")
    if answers is None:
        return () if question.get("is_impossible") else None
    return tuple(answer["text"] for answer in answers)


def _read_answer(
    question: dict[str, Any], version_2_with_negative: bool, source: str
) -> tuple[str, int] | None:
    """Returns the answer's text and offset, or None if there is no answer."""
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
    if not answers:
        raise UserError(
            f"{where}: training needs an answer (or --version_2_with_negative)."
        )
    return answers[0]["text"], text_files.require_value(
        answers[0], "answer_start", int, where
    )


def _add_answer(
    example: SquadExample, answer: tuple[str, int] | None
) -> SquadExample | None:
    """Returns the example with its answer; None if the paragraph lacks it."""
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
    # If an answer begins or ends at white space, use the word before the space.
    start = bisect.bisect(example.doc_token_starts, offset) - 1
    end = bisect.bisect(example.doc_token_starts, last) - 1
    if not text.strip() or start < 0 or last >= len(example.context):
        return None
    # Search inside the words: the word "(1895-1943)." contains the answer 1895.
    # Words may contain U+00A0, so normalize spaces.
    words = " ".join(example.doc_tokens[start : end + 1])
    if " ".join(text.split()) not in " ".join(words.split()):
        return None
    answer_start = None
    if example.is_unspaced(start, end):
        # Find the occurrence of the text that is nearest to the offset.
        before = example.context.rfind(text, 0, offset + len(text))
        places = {before, example.context.find(text, offset)} - {-1}
        answer_start = min(places, key=lambda x: abs(x - offset), default=None)
    return dataclasses.replace(
        example,
        orig_answer_text=text,
        start_position=start,
        end_position=end,
        answer_start=answer_start,
    )


def _has_rows(path: str) -> bool:
    """Returns True if a JSON file has a list or one object per line."""
    lines = (line.strip() for _, line in text_files.read_lines(path))
    first = next(filter(None, lines), "")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):  # JSON may span several lines.
        return first.startswith("[")
    return isinstance(value, list) or (
        isinstance(value, dict) and QUESTION in value
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadFiles(TaskFiles):
    """Files in SQuAD's format.

    Attributes:
      version_2_with_negative: Whether some questions have no answer.
      verbose_logging: Whether to log the ids of all questions left out.
    """

    kind: ClassVar[str] = "question_answering"

    name: str = "squad"
    version_2_with_negative: bool = False
    verbose_logging: bool = False

    def read(self, split: str) -> tuple[SquadExample, ...]:
        """Reads a SQuAD file; warns if a dev or test set cannot be scored.

        Raises:
          UserError: If the file is invalid or has nothing to train on, or if an
            evaluated question of SQuAD 1.1 has no answer.
        """
        path = self.files[split]
        is_training = split.split("_")[0] == TRAIN
        examples = build_examples(
            read_dataset(path),
            is_training,
            self.version_2_with_negative,
            path,
            None if self.verbose_logging else MAX_IDS,
        )
        if is_training:
            return examples
        without = [one.qas_id for one in examples if one.answers == ()]
        if without and not self.version_2_with_negative:
            raise UserError(
                f"{path} has {len(without)} questions without an answer, as in "
                "SQuAD 2.0; set --version_2_with_negative. The first is "
                f"{without[0]!r}."
            )
        num_unknown = sum(one.answers is None for one in examples)
        if 0 < num_unknown < len(examples):
            logging.warning(
                "%s cannot be scored: %d of its %d questions have no "
                '"answers".',
                path,
                num_unknown,
                len(examples),
            )
        return examples

    def is_labeled(self, examples: Sequence[SquadExample]) -> bool:
        return all(example.answers is not None for example in examples)

    def split_keys(self, examples: Sequence[Any]) -> list[SplitKey]:
        return [SplitKey(x.context) for x in examples]

    def example_from_row(self, row: Any) -> SquadExample:
        """Returns the example of a pair (question, context), or of a mapping.

        A mapping has "question", "context" and optionally "id".
        """
        pair = classification_examples.parse_row(row, [(QUESTION, CONTEXT)])
        id = row.get(ID) if isinstance(row, Mapping) else None
        return make_example(
            "" if id is None else str(id), pair.text_a, pair.text_b
        )

    def add_label(self, example: SquadExample, label: Any) -> SquadExample:
        """Returns an example with its answer, to train on.

        The label is the answer's text and the offset of its first character in
        the paragraph; the text is empty if there is no answer.

        Raises:
          UserError: If the label is malformed, or its answer is not there.
        """
        is_pair = isinstance(label, list | tuple) and len(label) == 2
        text, offset = label if is_pair else (None, None)
        if not isinstance(text, str) or not hasattr(offset, "__index__"):
            raise UserError(
                "Expected the answer's text and the offset of its first "
                f"character. Received: {label!r:.80}."
            )
        labeled = _add_answer(example, (text, int(offset)) if text else None)
        if labeled is None:
            raise UserError(
                "Expected an answer that is in the paragraph at its offset. "
                f"Received: {text!r:.80} at {offset}."
            )
        return labeled

    def read_inputs(self, path: str) -> Iterator[SquadExample]:
        """Yields the questions of a file to predict; answers are not read.

        The file is a SQuAD file (.json, .json.gz) or a table (.csv, .tsv,
        .jsonl, or .json with a list or one object per line). A table has the
        columns "question", "context" and optionally "id"; rows without an id
        are named by file and line.

        Raises:
          UserError: If the file is neither, or if a text in a table is empty.
            SQuAD files may have empty texts, as in the original.
        """
        table = self.read_table(path)
        if table is None:
            dataset = read_dataset(path, with_answers=False)
            yield from build_examples(dataset, is_training=False)
            return
        columns = (QUESTION, CONTEXT)
        table.require(columns)
        for row in table.rows:
            texts = classification_examples.make_example(path, row, columns)
            qas_id = row.values.get(ID)
            yield make_example(
                texts.guid if qas_id in (None, "") else str(qas_id),
                texts.text_a,
                texts.text_b,
            )

    def read_table(self, path: str) -> tables.Table | None:
        if tables.file_ending(path) == ".json" and not _has_rows(path):
            return None
        return tables.read_table(path)
