r"""Distills a large, fine-tuned BERT into a small one.

The teacher's model directory defines the task. Set the same data flags as when
the teacher was trained:

  python run/distill.py --teacher_dir=output/topics/model \
      --num_hidden_layers=4 --hidden_size=256 --train_file=train.csv \
      --dev_file=dev.csv --output_dir=output/small --do_train --do_eval

By default, the student is as wide as the teacher and copies some of its layers.
A narrower student copies only the embeddings, projected to its width. A wider
student starts with random weights. With --pretrained_model_dir, the student is
an existing model. --unlabeled_file adds texts that only the teacher labels.

The output directory has the same files as in fine-tuning; run/predict.py and
export/ accept its model. The same command resumes from the last checkpoint.
"""

import dataclasses
import functools
import math

from bert_tf.flags import options
from bert_tf.flags.finetune import FilesConfig

# As in the paper, a head has 64 units, and feed-forward layers have width 4 H.
_HEAD_SIZE = 64
_WIDENING = 4
# If one of these flags is set, the student is an existing model.
_STUDENT_FLAGS = (
    "pretrained_model_dir",
    "bert_config_file",
    "vocab_file",
    "init_checkpoint",
)
_shape = functools.partial(options.model, at_least=1, not_with=_STUDENT_FLAGS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillConfig(FilesConfig):
    """Flags of run/distill.py."""

    teacher_dir: str = options.start_model(
        "Fine-tuned teacher: a model directory or any other "
        "format. The student gets its task.",
        options.REQUIRED,
    )
    text_column: str | None = options.data(
        "Classification of your own files: column of the text (default: the "
        "teacher's, else text)."
    )
    text_pair_column: str | None = options.data(
        "Classification of your own files: column of the second text of a "
        "pair (default: the teacher's)."
    )
    label_column: str | None = options.data(
        "Classification of your own files: column of the label (default: the "
        "teacher's, else label); for a multi_label teacher also several, "
        "separated by commas."
    )
    unlabeled_file: str | None = options.data_file(
        "Additional training set without labels, in the format of "
        "run/predict.py --input_file; only the teacher labels it.",
        needs="do_train",
    )
    max_seq_length: int | None = options.data(
        "Maximum sequence length of both models, in tokens (default: the "
        "teacher's in training).",
        at_least=3,
    )

    num_hidden_layers: int | None = _shape(
        "Layers of a new student, L; replaces --pretrained_model_dir."
    )
    hidden_size: int | None = _shape(
        "Width of a new student, H (default: the teacher's)."
    )
    num_attention_heads: int | None = _shape(
        "Attention heads of a new student, A (default: the teacher's if the "
        "width is equal, else H / 64 as in the paper)."
    )
    intermediate_size: int | None = _shape(
        "Feed-forward width of a new student (default: the teacher's if the "
        "width is equal, else 4 H as in the paper)."
    )
    initialize_from_teacher: bool = options.model(
        "Initialize a new student from the teacher: at equal width with "
        "--teacher_layers, the embeddings and the head; if it is narrower, "
        "with projected embeddings.",
        True,
        not_with=_STUDENT_FLAGS,
    )
    teacher_layers: str | None = options.distillation(
        "Teacher layer for each student layer, from 1, separated by commas: "
        "for initialization and for the hidden-state loss (default: evenly "
        "spaced, up to the teacher's last)."
    )
    distillation_weight: float = options.distillation(
        "Weight of the teacher's soft targets in the loss, 0 to 1; the "
        "labels have the rest (Hinton et al., 2015).",
        0.5,
        **options.SHARE,
    )
    temperature: float = options.distillation(
        "Divisor of the logits for soft targets, at least 1.",
        2.0,
        at_least=1,
        below=math.inf,
        needs="distillation_weight",
    )
    hidden_weight: float = options.distillation(
        "Weight of the hidden-state loss, which is added; 0 turns it off.",
        1.0,
        below=math.inf,
    )
    hidden_loss: str = options.distillation(
        "Loss between hidden states: mse (Jiao et al., 2020) or cosine (Sanh "
        "et al., 2019).",
        "mse",
        choices=("mse", "cosine"),
        needs="hidden_weight",
    )
    attention_weight: float = options.distillation(
        "Weight of the attention loss, which is added (Sun et al., 2020); "
        "needs the teacher's number of heads and "
        "--attention_probs_dropout_prob=0.",
        0.0,
        below=math.inf,
        not_with="remat",
    )

    def check(self) -> None:
        super().check()
        options.require(
            self.learns_from_teacher or self.unlabeled_file is None,
            "--unlabeled_file has no effect if --distillation_weight, "
            "--hidden_weight and --attention_weight are 0; drop it.",
        )
        self.layers_of_flag()

    def _check_start(self) -> None:
        if self.has_student:
            super()._check_start()
        elif self.do_train:
            options.require(
                self.num_hidden_layers is not None,
                "Give --num_hidden_layers, for a new student, or "
                "--pretrained_model_dir.",
            )
            options.require(
                self.do_lower_case is None,
                "A new student reads text as its teacher does. Received: "
                f"--do_lower_case={self.do_lower_case}; drop it.",
            )

    @property
    def learns_from_teacher(self) -> bool:
        """True if any loss term uses the teacher."""
        return bool(
            self.distillation_weight
            or self.hidden_weight
            or self.attention_weight
        )

    @property
    def has_student(self) -> bool:
        """True if the student is an existing model, not a new one."""
        return any(getattr(self, name) for name in _STUDENT_FLAGS)

    def layers_of_flag(self) -> tuple[int, ...]:
        """Returns the numbers in --teacher_layers."""
        return options.values(self, "teacher_layers", int, may_repeat=True)

    def shape(
        self, hidden_size: int, num_attention_heads: int, intermediate_size: int
    ) -> dict[str, int]:
        """Returns a student's `BertConfig` values, given its teacher's."""
        width = self.hidden_size or hidden_size
        heads, inner = self.num_attention_heads, self.intermediate_size
        if width != hidden_size:
            num_attention_heads = width // _HEAD_SIZE
            intermediate_size = _WIDENING * width
            options.require(
                heads is not None or width % _HEAD_SIZE == 0,
                f"--hidden_size={width} is not a multiple of {_HEAD_SIZE}, so "
                "--num_attention_heads must be set.",
            )
        return {
            "num_hidden_layers": self.num_hidden_layers,
            "hidden_size": width,
            "num_attention_heads": heads or num_attention_heads,
            "intermediate_size": inner or intermediate_size,
        }


def main(config: DistillConfig) -> None:
    from bert_tf.distillation import inputs

    task_files = inputs.read(config)
    from bert_tf.distillation import run as distillation

    distillation.run(config, task_files)
