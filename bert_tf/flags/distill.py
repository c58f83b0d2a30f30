"""What run/distill.py can be told."""

import dataclasses

from bert_tf.config import option
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least
from bert_tf.flags.checks import require_defaults
from bert_tf.flags.checks import require_dropout
from bert_tf.flags.checks import require_rate
from bert_tf.flags.finetune import FinetuneConfig

# The paper's models have heads of this size, and four times the width between
# the two products of a layer.
_HEAD_SIZE = 64
_WIDENING = 4

_SHAPE_FLAGS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillConfig(FinetuneConfig):
    """Flags of run/distill.py."""

    teacher_dir: str = option(
        help_text="The fine-tuned model to learn from: a model directory or "
        "any other format. Its task is the student's."
    )
    data_dir: str | None = option(
        None,
        "The folder with the official files of the teacher's task, or of a "
        "tagger's train, dev and test.",
    )
    train_file: str | None = option(
        None,
        "What to train on, in the columns that the teacher was trained on.",
    )
    dev_file: str | None = option(None, "What to score.")
    test_file: str | None = option(None, "What to predict.")
    text_column: str | None = option(
        None,
        "Classification of own files: the column of the text (default: as of "
        "the teacher's data, else text).",
    )
    text_pair_column: str | None = option(
        None, "The same for the second text of a pair (default: the teacher's)."
    )
    label_column: str | None = option(
        None,
        "The same for the label (default: the teacher's, else label); several, "
        "with commas between, as of a multi_label teacher.",
    )
    unlabeled_file: str | None = option(
        None,
        "More to train on, without labels: what run/predict.py takes as "
        "--input_file. The teacher alone says what is right.",
    )
    max_seq_length: int | None = option(
        None,
        "The most pieces of a sequence, of both models (default: what the "
        "teacher was trained with).",
    )

    num_hidden_layers: int | None = option(
        None, "Layers of a new student, L; in place of --pretrained_model_dir."
    )
    hidden_size: int | None = option(
        None, "Width of a new student, H (default: the teacher's)."
    )
    num_attention_heads: int | None = option(
        None,
        "Attention heads of a new student, A (default: the teacher's if it is "
        "as wide, else H / 64 as in the paper).",
    )
    intermediate_size: int | None = option(
        None,
        "Width between the products of a new student's layers (default: the "
        "teacher's if it is as wide, else 4 H as in the paper).",
    )
    initialize_from_teacher: bool = option(
        True,
        "Whether a new student as wide as the teacher begins with --teacher_"
        "layers and what is around them; a narrower one begins at random.",
    )
    teacher_layers: str | None = option(
        None,
        "For each layer of the student a layer of the teacher, from 1, with "
        "commas between: what it begins with, and whose states it learns "
        "(default: evenly spread, the last to the last).",
    )
    distillation_weight: float = option(
        0.5,
        "Share of the loss that is the teacher's soft targets, 0 to 1; the "
        "labels have the rest (Hinton et al., 2015).",
    )
    temperature: float = option(
        2.0, "What logits are divided by for soft targets, at least 1."
    )
    hidden_weight: float = option(
        1.0,
        "Weight of the teacher's hidden states, added to the other two; 0 "
        "leaves them out.",
    )
    hidden_loss: str = option(
        "mse",
        "How hidden states are compared: mse (Jiao et al., 2020) or cosine "
        "(Sanh et al., 2019).",
        choices=("mse", "cosine"),
    )
    attention_weight: float = option(
        0.0,
        "Weight of the teacher's attention, added as well (Sun et al., 2020); "
        "needs as many heads and --attention_probs_dropout_prob=0.",
    )
    head_dropout_prob: float = option(
        0.1, "Dropout between the student's encoder and its head."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_own_files("data_dir")
        given = [
            f"--{name}"
            for name in ("train_file", "dev_file", "test_file")
            if getattr(self, name) is not None
        ]
        require(
            not (self.data_dir and given),
            "--data_dir takes the place of --train_file, --dev_file and "
            f"--test_file. Received: --data_dir and {', '.join(given)}.",
        )
        require(
            self.do_train or self.unlabeled_file is None,
            "--unlabeled_file is to train on, so it needs --do_train.",
        )
        require_at_least(self, 1, *_SHAPE_FLAGS)
        require_rate(self, "distillation_weight")
        require(
            1 <= self.temperature < float("inf"),
            f"--temperature must be at least 1. Received: {self.temperature}.",
        )
        for name in ("hidden_weight", "attention_weight"):
            value = getattr(self, name)
            require(
                0 <= value < float("inf"),
                f"--{name} must be at least 0. Received: {value}.",
            )
        for weight, name in (
            ("distillation_weight", "temperature"),
            ("hidden_weight", "hidden_loss"),
        ):
            if not getattr(self, weight):
                require_defaults(self, f"--{weight}=0", name)
        require_dropout(self, "head_dropout_prob")
        require(
            self.learns_from_teacher or self.unlabeled_file is None,
            "--unlabeled_file teaches nothing where --distillation_weight, "
            "--hidden_weight and --attention_weight are 0; drop it.",
        )
        require(
            not (self.remat and self.attention_weight),
            "--remat keeps no attention, which --attention_weight compares; "
            "drop one of the two.",
        )
        self.layers_of_flag()

    def _check_start(self) -> None:
        given = [
            f"--{name}"
            for name in _SHAPE_FLAGS
            if getattr(self, name) is not None
        ]
        if self.has_student:
            super()._check_start()
            require(
                not given and self.initialize_from_teacher,
                f"{', '.join(given) or '--noinitialize_from_teacher'}: these "
                "are for a new student; --pretrained_model_dir and "
                "--bert_config_file have a shape and weights. Drop the one or "
                "the other.",
            )
        elif self.do_train:
            require(
                self.num_hidden_layers is not None,
                "Give --num_hidden_layers, for a new student, or "
                "--pretrained_model_dir.",
            )
            require(
                self.do_lower_case is None,
                "A new student reads text as its teacher does. Received: "
                f"--do_lower_case={self.do_lower_case}; drop it.",
            )

    @property
    def learns_from_teacher(self) -> bool:
        """Whether the teacher has any part in the loss."""
        weights = (
            self.distillation_weight,
            self.hidden_weight,
            self.attention_weight,
        )
        return any(weights)

    @property
    def has_student(self) -> bool:
        """Whether the student is a model that is there."""
        return bool(
            self.pretrained_model_dir
            or self.bert_config_file
            or self.vocab_file
            or self.init_checkpoint
        )

    def layers_of_flag(self) -> tuple[int, ...] | None:
        """Returns what --teacher_layers says, None if it is not given."""
        if self.teacher_layers is None:
            return None
        parts = [part.strip() for part in self.teacher_layers.split(",")]
        require(
            all(part.isdecimal() and int(part) > 0 for part in parts),
            "--teacher_layers must be numbers from 1 with commas between, as "
            f"2,4,6. Received: {self.teacher_layers!r}.",
        )
        return tuple(map(int, parts))

    def given_columns(self) -> dict[str, str]:
        """Returns the names of columns that were given, by flag."""
        names = ("text_column", "text_pair_column", "label_column")
        values = {name: getattr(self, name) for name in names}
        return {name: x for name, x in values.items() if x is not None}

    def shape(
        self, hidden_size: int, num_attention_heads: int, intermediate_size: int
    ) -> dict[str, int]:
        """Returns the shape of a new student, as keys of a `BertConfig`.

        Args:
          hidden_size: The teacher's, like the next two.
          num_attention_heads: Its heads.
          intermediate_size: Its width between products.

        Raises:
          UserError: If the heads must be given.
        """
        width = self.hidden_size or hidden_size
        heads, inner = self.num_attention_heads, self.intermediate_size
        if width != hidden_size:
            num_attention_heads = width // _HEAD_SIZE
            intermediate_size = _WIDENING * width
            require(
                heads is not None or width % _HEAD_SIZE == 0,
                f"--hidden_size={width} is no multiple of {_HEAD_SIZE}, so "
                "--num_attention_heads must say how many heads share it.",
            )
        return {
            "num_hidden_layers": self.num_hidden_layers,
            "hidden_size": width,
            "num_attention_heads": heads or num_attention_heads,
            "intermediate_size": inner or intermediate_size,
        }
