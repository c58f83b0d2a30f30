"""The names of what a head chooses from."""

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.export.heads import next_sentence
from bert_tf.tasks import registry as tasks


def find(head: str, stored: StoredModel) -> tuple[str, ...]:
    """Returns the names in the order of the logits; none where none have.

    Args:
      head: The name of the head, as in bert_tf/export/heads/registry.py.
      stored: The model.

    Raises:
      UserError: If one of them cannot stand on a line.
    """
    labels = ()
    if head == "next_sentence":
        labels = next_sentence.LABELS
    elif head in ("classification", "tagging"):
        labels = tuple(tasks.from_stored(stored).labels or ())
    for label in labels:
        if "\n" in label or "\r" in label:
            raise UserError(
                "Labels must have no line end, as labels.txt has one a line. "
                f"Received: {label!r}; rename it in task.json."
            )
    return labels
