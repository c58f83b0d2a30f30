"""Checks and reports of the questions of a whole SQuAD file."""

from collections.abc import Sequence

from absl import logging

from bert_tf.errors import UserError
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.tasks.squad.examples import SquadExamples


def report_training(
    path: str, read: SquadExamples, max_ids: int | None
) -> None:
    """Logs how many questions there are to train on, and which are left out.

    At most `max_ids` ids of questions are logged; None logs all.

    Raises:
      UserError: If there is no question to train on.
    """
    num_questions = len(read.examples) + len(read.unmatched)
    if not read.examples:
        raise UserError(
            f"{path} has nothing to train on: none of its {num_questions} "
            "questions has its answer in the paragraph at the given offset."
        )
    if read.unmatched:
        logging.warning(
            "%s: %d of %d questions are left out because their answer is not "
            "in the paragraph at the given offset: %s.",
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


def require_answers(
    path: str, examples: Sequence[SquadExample], version_2_with_negative: bool
) -> None:
    """Raises `UserError` if a question of SQuAD 1.1 has no answer."""
    without = [one.qas_id for one in examples if one.answers == ()]
    if without and not version_2_with_negative:
        raise UserError(
            f"{path} has {len(without)} questions without an answer, as in "
            "SQuAD 2.0; set --version_2_with_negative. The first is "
            f"{without[0]!r}."
        )


def check_answers(
    path: str, examples: Sequence[SquadExample], version_2_with_negative: bool
) -> None:
    """Warns of a file that cannot be scored.

    Raises:
      UserError: As `require_answers`.
    """
    require_answers(path, examples, version_2_with_negative)
    num_unknown = sum(one.answers is None for one in examples)
    if 0 < num_unknown < len(examples):
        logging.warning(
            '%s cannot be scored: %d of its %d questions have no "answers".',
            path,
            num_unknown,
            len(examples),
        )
