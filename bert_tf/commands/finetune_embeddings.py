r"""Fine-tunes a BERT to embed texts, for search and similarity.

  python run/finetune_embeddings.py --train_file=train.csv --dev_file=dev.csv \
      --pretrained_model_dir=hf://sentence-transformers/all-MiniLM-L6-v2 \
      --output_dir=output/search --do_train --do_eval

Each row has an "anchor" (such as a question), a "positive" (such as its answer)
and, optionally, a "negative" (a text that is no answer). The positives and
negatives of other rows serve as negatives, too. Instead, a file may have the
columns "text_a", "text_b" and "score", the similarity of the texts (-1 to 1).

The dev set is scored by search (mean reciprocal rank and nDCG of the first 10
texts) or the correlation of cosines and scores. --micro_batch_size saves memory
and keeps the loss. Rerun the same command to resume from the last checkpoint.
"""

import dataclasses
from typing import ClassVar

from bert_tf.flags import groups
from bert_tf.flags import options
from bert_tf.flags.finetune import FinetuneConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingsConfig(FinetuneConfig):
    """Flags of run/finetune_embeddings.py."""

    reads_pooler: ClassVar[bool] = False

    train_file: str | None = options.data_file(
        "Training set, with the columns above."
    )
    dev_file: str | None = options.data_file("Dev set.")
    test_file: str | None = options.data_file("Test set.", affects="nothing")
    max_seq_length: int | None = options.data(
        "Maximum sequence length, in tokens (default: the model's).", at_least=3
    )

    optimizer: str = options.training(
        "Optimizer. bert_adam lacks bias correction, so its first steps are "
        "too large.",
        "adamw",
        choices=groups.OPTIMIZERS,
    )

    def check(self) -> None:
        super().check()
        self._require_own_files()
        options.require(
            self.head == "linear",
            f"Embeddings have no head. Received: --head={self.head}; drop it.",
        )


def main(config: EmbeddingsConfig) -> None:
    from bert_tf.tasks import dev_split
    from bert_tf.tasks import stored_task
    from bert_tf.tasks.embeddings.examples import PairFiles

    stored_task.check_model(config)
    task_files = PairFiles(files=config.named_files())
    task_files = dev_split.split(task_files, config).load()
    if config.do_train:
        train = task_files.data["train"].examples
        sizes = options.values(config, "train_batch_size", int)
        options.require(
            len(train[0]) > 2 or min(len(train), *sizes) > 1,
            "A step needs two pairs: other rows are the negatives. Received: "
            f"{len(train)} and --train_batch_size={config.train_batch_size}.",
        )
    from bert_tf.finetuning import contrastive

    contrastive.train_embeddings(config, task_files)
