"""What run/finetune_squad.py can be told."""

import dataclasses

from bert_tf.config import option
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least
from bert_tf.flags.finetune import FinetuneConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadConfig(FinetuneConfig):
    """Flags of run/finetune_squad.py; those of the original first."""

    train_file: str | None = option(
        None, "SQuAD JSON to train on: train-v1.1.json."
    )
    predict_file: str | None = option(
        None,
        "SQuAD JSON to predict, and to score if it has answers: dev-v1.1.json.",
    )
    max_seq_length: int = option(
        384, "The most pieces of question and paragraph together."
    )
    doc_stride: int = option(
        128,
        "Paragraphs that are too long are read in windows that begin so many "
        "pieces after each other.",
    )
    max_query_length: int = option(
        64, "The most pieces of a question; longer ones are truncated."
    )
    do_eval: bool = option(
        False, "Whether --predict_file must have answers to score."
    )
    do_predict: bool = option(
        False,
        "Whether to predict --predict_file, and to score it if it has answers.",
    )
    eval_batch_size: int | None = option(
        None,
        "Windows computed at once for scores (default: --predict_batch_size).",
    )
    predict_batch_size: int = option(
        8, "Windows computed at once in prediction."
    )
    n_best_size: int = option(
        20, "Answers a question in nbest_predictions.json."
    )
    max_answer_length: int = option(30, "The most pieces of an answer.")
    version_2_with_negative: bool = option(
        False, "Whether some questions have no answer, as in SQuAD 2.0."
    )
    null_score_diff_threshold: float | None = option(
        None,
        "No answer is given where null_odds is above this (default: that of a "
        "model that is only used, else what gives --predict_file the best F1, "
        "else 0).",
    )
    verbose_logging: bool = option(
        False, "Whether all questions that are left out are named."
    )
    triviaqa_file: str | None = option(
        None,
        "wikipedia-train.json of TriviaQA, to fine-tune on before SQuAD, in "
        "<output_dir>/triviaqa.",
    )
    triviaqa_evidence_dir: str | None = option(
        None, "TriviaQA's folder evidence/wikipedia, with its documents."
    )
    ensemble_nbest_files: str | None = option(
        None,
        "nbest_predictions.json of several runs, with commas between or as "
        "globs: they predict --predict_file together, and no model is needed.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.do_train or self.train_file is not None,
            "--do_train needs --train_file.",
        )
        require(
            not (self.do_eval or self.do_predict)
            or self.predict_file is not None,
            "--do_predict and --do_eval need --predict_file.",
        )
        require_at_least(
            self,
            1,
            "doc_stride",
            "max_query_length",
            "n_best_size",
            "max_answer_length",
        )
        require(
            self.max_seq_length > self.max_query_length + 3,
            "--max_seq_length must be greater than --max_query_length + 3 = "
            f"{self.max_query_length + 3}. Received: {self.max_seq_length}.",
        )
        require(
            not self.new_pooler,
            "--new_pooler has no effect on SQuAD, whose head does not read the "
            "pooler; drop it.",
        )
        self._check_triviaqa()
        require(
            not (self.ensemble_nbest_files and self.do_train),
            "--ensemble_nbest_files combines what is predicted already. "
            "Received: --do_train; drop one of the two.",
        )

    @property
    def may_score_dev(self) -> bool:
        """Whether --predict_file is read, which then may have answers."""
        return self.do_eval or self.do_predict

    def _check_triviaqa(self) -> None:
        require(
            bool(self.triviaqa_file) == bool(self.triviaqa_evidence_dir),
            "--triviaqa_file and --triviaqa_evidence_dir belong together. "
            f"Received: {self.triviaqa_file}, {self.triviaqa_evidence_dir}.",
        )
        require(
            self.do_train or not self.triviaqa_file,
            "--triviaqa_file needs --do_train.",
        )
        require(
            not self.triviaqa_file or len(self.runs()) == self.num_restarts,
            "--triviaqa_file is trained on once, so that --learning_rate, "
            "--train_batch_size and --num_train_epochs must have one value. To "
            "try several on SQuAD give --pretrained_model_dir="
            "<output_dir>/triviaqa/model instead.",
        )
