"""Chooses whether to leave padding out (`--unpad`), and finds the tokens.

In equal batches, losses with and without padding differ only by rounding. A
program is compiled for each number of tokens, so micro-batches are filled up to
one of a few numbers; see `layouts.find_tokens_of_parts`.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import tensorflow as tf

from bert_tf.distribute.batches import StepPlan
from bert_tf.errors import UserError
from bert_tf.features import INPUT_MASK
from bert_tf.io import terminal
from bert_tf.modeling import layouts

# If tokens fill this share of a batch or more, omitting padding saves no time.
_FULL = 0.95
# If a micro-batch's hidden states have fewer elements than this, compiling a
# program for each number of tokens takes longer than it saves.
_LEAST_ELEMENTS = 1 << 18

Rows = dict[str, tf.Tensor]


def pays(share_of_tokens: float, num_elements: int) -> bool:
    """Estimates whether leaving padding out makes a model faster on a CPU.

    `share_of_tokens` is the share of positions in padded batches that are not
    padding; `num_elements` is the size of a padded micro-batch's hidden states.
    """
    return share_of_tokens < _FULL and num_elements >= _LEAST_ELEMENTS


def choose(
    flag: str,
    kind: str,
    is_faster: Callable[[], bool],
    stored: bool | None = None,
    reads_padding: bool = False,
) -> bool:
    """Returns whether the model computes only tokens, and no padding.

    `flag` is --unpad: "on", "off" or "auto". On a TPU, and for a task that
    `reads_padding` in the outputs, "auto" means "off" and "on" raises
    `UserError`. Elsewhere, "auto" keeps the `stored` choice of a checkpoint;
    without one, it means "on" only on a CPU where `is_faster` returns True.
    """
    if reads_padding and flag == "on":
        raise UserError(
            "--unpad=on is for tasks that do not read the outputs of padding. "
            "Received: question answering in batches of one length, as in the "
            "original; drop --unpad, or --num_length_buckets=1."
        )
    if kind == "TPU" and flag == "on":
        raise UserError(
            "A TPU runs programs for one shape, so it computes padding. "
            "Received: --unpad=on; drop the flag."
        )
    if flag != "auto":
        chosen = flag == "on"
    elif reads_padding or kind == "TPU":
        chosen = False
    elif stored is not None:
        chosen = stored
    else:  # GPUs compute padding: the gain is not measured.
        chosen = kind == "CPU" and is_faster()
    if stored is not None and chosen != stored:
        terminal.detail(
            "Padding is %scomputed from here on: --unpad=%s.",
            "not " if chosen else "",
            flag,
        )
    return chosen


def token_finder(
    plan: StepPlan,
    longest: Sequence[int],
    shapes: Sequence[Sequence[int]] = (),
) -> Callable[[Mapping[str, tf.Tensor]], Rows]:
    """Returns a function that adds the indices of tokens to a replica's rows.

    Args:
      plan: How a batch is split.
      longest: The shape of the longest example's `input_mask`.
      shapes: An example's shape for each batch length; by default, `longest`.
    """
    step = layouts.row_step(longest)
    counts = [layouts.row_counts(shape, step) for shape in shapes or [longest]]
    terminal.detail(
        "Padding is not computed: a micro-batch of %d examples has a multiple "
        "of %d rows for its tokens, or one for each position. Programs are "
        "compiled for at most %d numbers of rows, those of a whole step for "
        "at most %d pairs of length and rows.",
        plan.micro_batch_size,
        step * plan.micro_batch_size,
        len(set().union(*counts)),
        sum(map(len, counts)),
    )

    def add(rows: Mapping[str, tf.Tensor]) -> Rows:
        found = layouts.find_tokens_of_parts(
            rows[INPUT_MASK.name], plan.micro_batch_size, step
        )
        return {**rows, **found}

    return add
