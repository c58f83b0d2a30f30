"""Flags of run/finetune_squad.py."""

import dataclasses

from bert_tf.flags import options
from bert_tf.flags.finetune import FinetuneConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadConfig(FinetuneConfig):
    """Flags of run/finetune_squad.py; the original's flags first."""

    train_file: str | None = options.data(
        None,
        "SQuAD JSON to train on, such as train-v1.1.json.",
        affects="place",
        reads="file",
    )
    predict_file: str | None = options.data(
        None,
        "SQuAD JSON to predict, and to score if it has answers, such as "
        "dev-v1.1.json.",
        affects="nothing",
        reads="file",
    )
    max_seq_length: int = options.data(
        384,
        "Maximum length of question and paragraph together, in tokens.",
        at_least=3,
    )
    doc_stride: int = options.data(
        128,
        "Distance between the starts of the windows that long paragraphs are "
        "split into, in tokens.",
        at_least=1,
    )
    max_query_length: int = options.data(
        64,
        "Maximum length of a question, in tokens; longer ones are truncated.",
        at_least=1,
    )
    do_eval: bool = options.evaluation(
        False,
        "Score --predict_file, which must have answers.",
        affects="nothing",
    )
    do_predict: bool = options.evaluation(
        False,
        "Predict --predict_file, and score it if it has answers.",
        affects="nothing",
    )
    eval_batch_size: int | None = options.evaluation(
        None,
        "Batch size for scores, in windows (default: --predict_batch_size).",
        affects="nothing",
        at_least=1,
    )
    predict_batch_size: int = options.evaluation(
        8,
        "Batch size for predictions, in windows.",
        affects="nothing",
        at_least=1,
    )
    n_best_size: int = options.evaluation(
        20, "Answers per question in nbest_predictions.json.", at_least=1
    )
    max_answer_length: int = options.evaluation(
        30, "Maximum length of an answer, in tokens.", at_least=1
    )
    version_2_with_negative: bool = options.data(
        False, "Some questions have no answer, as in SQuAD 2.0."
    )
    null_score_diff_threshold: float | None = options.evaluation(
        None,
        "Predict no answer where null_odds exceeds this threshold (default: "
        "the model's if it is only used; else the value with the best F1 on "
        "--predict_file; else 0).",
    )
    verbose_logging: bool = options.output(
        False, "Log every question that is skipped.", affects="nothing"
    )
    triviaqa_file: str | None = options.data(
        None,
        "wikipedia-train.json of TriviaQA, to fine-tune on before SQuAD, in "
        "<output_dir>/triviaqa.",
        reads="file",
        needs="triviaqa_evidence_dir",
    )
    triviaqa_evidence_dir: str | None = options.data(
        None,
        "Directory evidence/wikipedia of TriviaQA, with its documents.",
        reads="folder",
        needs="triviaqa_file",
    )
    ensemble_nbest_files: str | None = options.evaluation(
        None,
        "nbest_predictions.json of several runs, as comma-separated paths or "
        "globs: they predict --predict_file together, without a model.",
        reads="files",
        not_with="do_train",
    )

    def check(self) -> None:
        super().check()
        options.require(
            not self.do_train or self.train_file is not None,
            "--do_train needs --train_file.",
        )
        options.require(
            not (self.do_eval or self.do_predict)
            or self.predict_file is not None,
            "--do_predict and --do_eval need --predict_file.",
        )
        options.require(
            self.max_seq_length > self.max_query_length + 3,
            "--max_seq_length must be greater than --max_query_length + 3 = "
            f"{self.max_query_length + 3}. Received: {self.max_seq_length}.",
        )
        options.require(
            not self.new_pooler,
            "--new_pooler has no effect on SQuAD, whose head does not read the "
            "pooler; drop it.",
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
        """Returns the flags of inputs that these flags leave unread."""
        unread = set() if self.may_score_dev else {"predict_file"}
        return super().unread_inputs() | unread

    @property
    def may_score_dev(self) -> bool:
        """True if --predict_file is read; it may have answers to score."""
        return self.do_eval or self.do_predict
