"""The files of SQuAD, and checks of a whole file's questions."""

import dataclasses
from collections.abc import Iterator
from collections.abc import Sequence
from typing import ClassVar

from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import tables
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.tasks.task_files import TRAIN
from bert_tf.tasks.task_files import TaskFiles


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadFiles(TaskFiles):
    """Files in SQuAD's format.

    Attributes:
      version_2_with_negative: Whether some questions have no answer.
      verbose_logging: Whether all questions that are left out are logged.
    """

    kind: ClassVar[str] = "question_answering"

    name: str = "squad"
    version_2_with_negative: bool = False
    verbose_logging: bool = False

    def read(self, split: str) -> tuple[SquadExample, ...]:
        """Reads a SQuAD file.

        Training questions whose answer is not in the paragraph are left out,
        as in the original, and counted.

        Raises:
          UserError: If the file is invalid or has nothing to train on, or a
            question to score has no answer without `version_2_with_negative`.
        """
        path = self.files[split]
        is_training = split.split("_")[0] == TRAIN
        examples = squad_examples.read_squad_examples(
            path,
            is_training,
            self.version_2_with_negative,
            max_ids=None if self.verbose_logging else squad_examples.MAX_IDS,
        )
        if not is_training:
            check_answers(path, examples, self.version_2_with_negative)
        return examples

    def is_labeled(self, examples: Sequence[SquadExample]) -> bool:
        return all(example.answers is not None for example in examples)

    def read_inputs(self, path: str) -> Iterator[SquadExample]:
        yield from squad_examples.read_questions(path)

    def read_table(self, path: str) -> tables.Table | None:
        is_json = tables.file_ending(path) == ".json"
        is_table = not is_json or squad_examples.has_rows(path)
        return super().read_table(path) if is_table else None


def check_answers(
    path: str, examples: Sequence[SquadExample], version_2_with_negative: bool
) -> None:
    """Warns of a file that cannot be scored.

    Raises:
      UserError: If a question of SQuAD 1.1 has no answer.
    """
    without = [one.qas_id for one in examples if one.answers == ()]
    if without and not version_2_with_negative:
        raise UserError(
            f"{path} has {len(without)} questions without an answer, as in "
            "SQuAD 2.0; set --version_2_with_negative. The first is "
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
