r"""Fine-tunes a BERT on SQuAD 1.1 or 2.0, predicts, and scores.

  python run/finetune_squad.py --pretrained_model_dir=output/base/model \
      --do_train --train_file=train-v1.1.json \
      --do_predict --predict_file=dev-v1.1.json --output_dir=output/squad

Command lines of the original's run_squad.py work, too. SQuAD 2.0 needs
--version_2_with_negative; its threshold is tuned on --predict_file.
--triviaqa_file and --triviaqa_evidence_dir fine-tune on TriviaQA first, as in
the paper, and --ensemble_nbest_files predicts with an ensemble of runs. Rerun
the same command to resume from the last checkpoint.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from absl import logging

from bert_tf.errors import UserError
from bert_tf.flags import options
from bert_tf.flags.finetune import FinetuneConfig

_TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".xlsx")
# Flags for reading text and selecting answers; changing one changes the score.
_READING_FLAGS = (
    "max_seq_length",
    "doc_stride",
    "max_query_length",
    "n_best_size",
    "max_answer_length",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadConfig(FinetuneConfig):
    """Flags of run/finetune_squad.py; the first are mostly the original's."""

    reads_pooler = False

    train_file: str | None = options.data_file(
        "SQuAD JSON to train on, such as train-v1.1.json."
    )
    predict_file: str | None = options.data_file(
        "SQuAD JSON to predict, and to score if it has answers, such as "
        "dev-v1.1.json.",
        affects="nothing",
    )
    max_seq_length: int = options.data(
        "Maximum length of question and paragraph together, in tokens.",
        384,
        at_least=3,
    )
    doc_stride: int = options.data(
        "Distance between the starts of the windows that long paragraphs are "
        "split into, in tokens.",
        128,
        at_least=1,
    )
    max_query_length: int = options.data(
        "Maximum length of a question, in tokens; longer ones are truncated.",
        64,
        at_least=1,
    )
    do_eval: bool = options.scoring(
        "Score --predict_file, which must have answers.", False
    )
    do_predict: bool = options.scoring(
        "Predict --predict_file, and score it if it has answers.", False
    )
    eval_batch_size: int | None = options.scoring(
        "Batch size for scores, in windows (default: --predict_batch_size).",
        at_least=1,
    )
    predict_batch_size: int = options.scoring(
        "Batch size for predictions, in windows.", 8, at_least=1
    )
    n_best_size: int = options.evaluation(
        "Answers per question in nbest_predictions.json.", 20, at_least=1
    )
    max_answer_length: int = options.evaluation(
        "Maximum length of an answer, in tokens.", 30, at_least=1
    )
    version_2_with_negative: bool = options.data(
        "Some questions have no answer, as in SQuAD 2.0.", False
    )
    null_score_diff_threshold: float | None = options.evaluation(
        "Predict no answer where null_odds exceeds this threshold (default: "
        "the model's if it is only used; else the value with the best F1 on "
        "--predict_file; else 0).",
        at_least=-math.inf,
    )
    verbose_logging: bool = options.reporting(
        "Log every question that is skipped.", False
    )
    triviaqa_file: str | None = options.data(
        "wikipedia-train.json of TriviaQA, to fine-tune on before SQuAD, in "
        "<output_dir>/triviaqa.",
        reads="file",
        needs="triviaqa_evidence_dir",
    )
    triviaqa_evidence_dir: str | None = options.data(
        "Directory evidence/wikipedia of TriviaQA, with its documents.",
        reads="folder",
        needs="triviaqa_file",
    )
    ensemble_nbest_files: str | None = options.evaluation(
        "nbest_predictions.json of several runs, as comma-separated paths or "
        "globs: they predict --predict_file together, without a model.",
        reads="files",
        not_with="do_train",
    )

    def check(self) -> None:
        super().check()
        for flag in ("train_file", "predict_file", "triviaqa_file"):
            path = (getattr(self, flag) or "").removesuffix(".gz")
            options.require(
                not path.lower().endswith(_TABLES),
                f'--{flag} must be SQuAD JSON ({{"data": [...]}}). Received: '
                f"the table {path!r}; only run/predict.py reads tables.",
            )
        options.require(
            not self.do_train or self.train_file is not None,
            "--do_train needs --train_file.",
        )
        options.require(
            not (self.do_eval or self.do_predict)
            or self.predict_file
            or self.dev_fraction,
            "--do_predict and --do_eval need --predict_file, or "
            "--dev_fraction=0.1 of --train_file.",
        )
        options.require(
            self.max_seq_length > self.max_query_length + 3,
            "--max_seq_length must be greater than --max_query_length + 3 = "
            f"{self.max_query_length + 3}. Received: {self.max_seq_length}.",
        )
        options.require(
            not self.triviaqa_file
            or (self.do_train and len(self.trials()) == self.num_restarts),
            "--triviaqa_file needs --do_train, and one value each of "
            "--learning_rate, --train_batch_size and --num_train_epochs, as it "
            "is trained on once. To try several on SQuAD, give "
            "--pretrained_model_dir=<output_dir>/triviaqa/model instead.",
        )

    def unread_inputs(self) -> frozenset[str]:
        """Returns the flags of the input files that this run does not read."""
        unread = set() if self.may_score_dev else {"predict_file"}
        return super().unread_inputs() | unread

    @property
    def may_score_dev(self) -> bool:
        """True if the run reads --predict_file, which may have answers."""
        return self.do_eval or self.do_predict


def main(config: SquadConfig) -> None:
    config, task_files = read(config)
    from bert_tf.finetuning import squad

    squad.run(config, task_files, build_task)


def read(config: SquadConfig):
    """Returns the flags and the `SquadFiles`, with their data.

    --do_eval is set in the returned flags if --predict_file has answers.
    """
    from bert_tf.tasks import dev_split
    from bert_tf.tasks import stored_task
    from bert_tf.tasks.task_files import DEV
    from bert_tf.tasks.task_files import TEST

    if not config.ensemble_nbest_files:
        stored_task.check_model(config, "question_answering")
    if config.dev_fraction and config.do_predict:
        config = dataclasses.replace(config, do_eval=True, do_predict=False)
    task = dev_split.split(_files(config), config).load()
    predicted = task.data.get(DEV) or task.data.get(TEST)
    if predicted is None:
        return config, task
    if task.is_labeled(predicted.examples):
        config = dataclasses.replace(
            config,
            do_eval=True,
            do_predict=False,
            eval_batch_size=config.eval_batch_size or config.predict_batch_size,
        )
        data = {**task.data, DEV: predicted}
        paths = {DEV if x == TEST else x: task.files[x] for x in task.files}
        return config, dataclasses.replace(task, files=paths, data=data)
    selects_on_dev = config.do_train and (
        len(config.trials()) > 1 or config.selects_evaluation
    )
    if config.do_eval or selects_on_dev:
        raise UserError(
            f"{config.predict_file} cannot be scored, as questions have no "
            '"answers"; drop --do_eval and the flags that select a model on '
            "dev to only predict."
        )
    return config, task


def _files(config: SquadConfig):
    from bert_tf.tasks.squad.examples import SquadFiles

    paths = {
        kind: config.train_file if kind == "train" else config.predict_file
        for kind in config.requested_splits()
    }
    if config.do_eval:
        paths.pop("test", None)
    return SquadFiles(
        files=paths,
        version_2_with_negative=config.version_2_with_negative,
        verbose_logging=config.verbose_logging,
    )


def build_task(
    config: SquadConfig,
    stored_task: Mapping[str, Any] | None,
    task_files: Any = None,
):
    """Returns the `SquadTask` of the flags; finds files if it gets none."""
    from bert_tf.tasks import task as tasks
    from bert_tf.tasks.squad.task import SquadTask

    threshold, head = config.null_score_diff_threshold, config.head
    source = "--null_score_diff_threshold"
    reading = {name: getattr(config, name) for name in _READING_FLAGS}
    if stored_task is not None:
        head = stored_task.get("head", "linear")
        version = {"version_2_with_negative": config.version_2_with_negative}
        tasks.warn_of_settings(stored_task, reading | version)
        if threshold is None:
            threshold = stored_task.get("null_score_diff_threshold")
            source = "the model"
    if threshold is not None:
        logging.info(
            "The null_score_diff_threshold %.6g is from %s.",
            threshold,
            source,
        )
    return SquadTask(
        **(task_files or _files(config)).arguments(),
        **reading,
        null_score_diff_threshold=threshold,
        head=head,
        # With one padded length, the softmax reads padding, as in the original.
        mask_padding=config.num_length_buckets != 1,
    )
