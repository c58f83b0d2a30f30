"""The plateau of pretraining: a model that has learned only token frequencies.

At each [MASK], such a model uses token frequencies as probabilities. One in
five predicted tokens is not masked: the input is the correct or a random token,
and a frequent token is more likely to be correct. The frequency line is the
loss of such a model, the entropy of a predicted token given the input token.

With a vocabulary of 2,000 tokens, the frequency line is 5.5. The loss falls to
this line within some hundred steps, stays there for millions of tokens, and
falls to 4.0 within 1,000 steps once attention finds the neighbors of a [MASK].
If the loss stays at the frequency line, the model has learned no language.
"""

import math
from collections.abc import Iterable
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy import special

from bert_tf.flags.options import Flags
from bert_tf.text import masking

# Predictions in a sample: fewer estimate the entropy badly, more take longer.
_PREDICTIONS = 200_000
# A loss of at least this multiple of the frequency line is on the plateau.
_ON_PLATEAU = 0.98
# Average the loss over this many steps: single losses vary by some percent.
_AVERAGED_STEPS = 50
# Healthy small runs leave the plateau after 3 to 10 million tokens. Warn after
# 20 million tokens and a fifth of the steps, or at the last step.
_PATIENCE_TOKENS = 20e6
_PATIENCE_SHARE = 0.2
# Without Adam's bias correction, the first 1,000 updates or so are too large.
_UNCORRECTED_STEPS = 1000
# A good peak learning rate is 0.25 / hidden size, such as 2e-3 for size 128.
_RATE = 0.25
_MORE_TEXT = (
    "give run/create_pretraining_data.py more text, or a smaller "
    "--dupe_factor, and train with --dynamic_masking."
)


class TextSample(NamedTuple):
    """Properties of the data, from some of the records.

    Attributes:
      frequency_loss: The frequency line, in nats; nan without predictions.
      distinct: Number of distinct records divided by the number of records.
    """

    frequency_loss: float
    distinct: float


def sample(
    batches: Iterable[Mapping[str, np.ndarray]],
    vocab_size: int,
    left_to_right: bool = False,
) -> TextSample:
    """Returns properties of records with about 200,000 predictions.

    `batches` have the features of `bert_tf.features.PRETRAINING`, [B, ...]
    each. A left-to-right model sees no predicted token, so all count as masked.
    """
    counts = np.zeros(vocab_size, np.int64)
    replacements = np.zeros(vocab_size, np.int64)
    rows, num_rows = set(), 0
    for batch in batches:
        chosen = batch["masked_lm_weights"] > 0
        tokens = batch["masked_lm_ids"][chosen]
        seen = np.take_along_axis(
            batch["input_ids"], batch["masked_lm_positions"], axis=1
        )[chosen]
        counts += np.bincount(tokens, minlength=vocab_size)
        replacements += np.bincount(seen[seen != tokens], minlength=vocab_size)
        texts = masking.restore_ids(batch).numpy()
        rows.update(text.tobytes() for text in texts)
        num_rows += len(texts)
        if counts.sum() >= _PREDICTIONS:
            break
    total = counts.sum()
    if not total:
        return TextSample(math.nan, 1.0)
    masked = 1.0
    replaced = replacements.sum() / total
    if not left_to_right:
        masked = replacements.max() / total  # [MASK] is the most frequent.
    loss = frequency_loss(
        counts, masked, 1.0 - replaced, max(replaced - masked, 0.0)
    )
    return TextSample(loss, len(rows) / num_rows)


def frequency_loss(
    counts: np.ndarray, masked: float, same: float, random: float
) -> float:
    """Returns the entropy of a token given the token in its place, in nats.

    Let p be the frequencies of n tokens. With probability `same` p(x), the
    input is x and x is correct. With probability `random` p(y) / n, the input
    is x, drawn at random, and y is correct. So given the input x, another token
    y is correct with probability `random` p(y) / (n `same` p(x) + `random`).

    If N draws contain k distinct tokens, the estimated entropy is too small by
    (k - 1) / 2N (Miller 1955, "Note on the bias of information estimates").

    Args:
      counts: <int64>[n], how often each token is predicted.
      masked: Share of predictions at a [MASK].
      same: Share of predictions at an unchanged token.
      random: Share of predictions at a token drawn at random.
    """
    p = counts / counts.sum()
    surprise = special.entr(p)
    bias = (np.count_nonzero(p) - 1) / (2 * counts.sum())
    entropy = surprise.sum() + bias
    if masked == 1.0 or not same + random:
        return float(entropy)
    seen = same * p + random / len(p)
    own = same * p + random * p / len(p)
    other = random * (1.0 - p) / len(p)
    loss = -special.rel_entr(own, seen)
    loss -= special.xlogy(other, random / len(p)) - special.xlogy(other, seen)
    loss += random / len(p) * (entropy - surprise)
    return float(masked * entropy + loss.sum())


class Watch:
    """Watches whether a run leaves the plateau.

    `width` is the model's `hidden_size`; `text` describes the training records.
    This process starts at `step`. Until then, the run has read `tokens`; if
    None, this number is computed from `step` and the flags.
    """

    def __init__(
        self,
        config: Flags,
        text: TextSample,
        width: int,
        step: int = 0,
        tokens: int | None = None,
    ) -> None:
        # If the input shows all predicted tokens, the frequency line is 0. Use
        # nan instead, because every loss above 0 would cause a warning.
        self.line = text.frequency_loss or math.nan
        self._config = config
        self._text = text
        self._rate = _RATE / width
        self._tokens_per_step = (
            config.train_batch_size
            * config.gradient_accumulation_steps
            * config.max_seq_length
        )
        self._step = step
        own = step * self._tokens_per_step
        self._tokens = own if tokens is None else tokens
        self._loss = 0.0
        self._weight = 0.0
        self._held_out = math.nan
        self._remembers = False
        self._has_warned = False

    def add(self, masked_lm_loss: float, num_steps: int) -> None:
        """Updates the average with the mean loss of `num_steps` steps."""
        share = 1 - math.exp(-num_steps / _AVERAGED_STEPS)
        self._weight += share * (1 - self._weight)
        # Divide by the sum of weights; otherwise averages would start near 0.
        self._loss += share / self._weight * (masked_lm_loss - self._loss)

    def add_held_out(self, masked_lm_loss: float) -> None:
        """Stores the loss on held-out records."""
        self._held_out = masked_lm_loss
        # Compare now: in later steps, the training loss would be lower.
        has_left = self._has_left(self._loss)
        self._remembers = has_left and not self._has_left(masked_lm_loss)

    def tokens(self, step: int) -> int:
        """Returns how many positions were read up to a step, with padding."""
        return self._tokens + (step - self._step) * self._tokens_per_step

    def describe(self) -> str:
        """Returns a text that compares loss and frequency line, or ""."""
        if math.isnan(self.line) or not self._weight:
            return ""
        has_left = self._has_left(self._loss)
        state = "has learned more" if has_left else "has learned nothing else"
        return (
            "A model that predicts by token frequency alone has a masked-LM "
            f"loss of {self.line:.3f}. This one has {self._loss:.3f} and "
            f"{state}."
        )

    def warning(self, step: int) -> str | None:
        """Returns a warning that names the cause, at most once, or None."""
        last_step = self._config.num_train_steps
        is_late = (
            self.tokens(step) >= _PATIENCE_TOKENS
            and step >= _PATIENCE_SHARE * last_step
        )
        if self._has_warned or not (is_late or step == last_step):
            return None
        cause = self._cause(step)
        self._has_warned = cause is not None
        return cause

    def _has_left(self, loss: float) -> bool:
        return not loss >= _ON_PLATEAU * self.line

    def _cause(self, step: int) -> str | None:
        tokens = f"{self.tokens(step) / 1e6:.1f} million tokens"
        if self._has_left(self._loss):
            if not self._remembers:
                return None
            return (
                f"After {tokens} the masked-LM loss is {self._loss:.2f} in "
                f"training and {self._held_out:.2f} on held-out records, where "
                f"the frequency of tokens alone gives {self.line:.2f}: the "
                f"model remembers its records; {_MORE_TEXT}"
            )
        return (
            f"After {tokens} the masked-LM loss is {self._loss:.2f}, where the "
            f"frequency of tokens alone gives {self.line:.2f}: the model has "
            f"learned no language yet. {self._advice()}"
        )

    def _advice(self) -> str:
        """Returns the likeliest reason, and the flag to change."""
        config = self._config
        rate, good = config.learning_rate, f"{self._rate:.0e}"
        last = config.num_train_steps
        steps = 2 * max(_PATIENCE_TOKENS / self._tokens_per_step, last)
        steps = math.ceil(steps / 100) * 100
        if self._text.distinct < 0.5:
            share = f"{self._text.distinct:.0%}"
            return f"Only {share} of the records differ; {_MORE_TEXT}"
        warm_up = config.num_warmup_steps
        if warm_up > last - config.schedule_start_step:
            return (
                f"--num_warmup_steps={warm_up} is longer than the run, so the "
                f"rate stays below --learning_rate; try {last // 10}."
            )
        if config.optimizer != "lamb":  # LAMB's rates are relative to weights.
            if rate > 2 * self._rate:
                return f"--learning_rate={rate:g} is high; try {good}."
            if rate < self._rate / 10:
                return f"--learning_rate={rate:g} is low; try {good}."
        is_short = warm_up < _UNCORRECTED_STEPS < last
        if config.optimizer == "bert_adam" and is_short:
            return (
                f"--num_warmup_steps={warm_up} is short for "
                "--optimizer=bert_adam, whose first updates are too large (no "
                "bias correction, as the original); try --optimizer=adamw, or "
                "--num_warmup_steps=1000 with half of "
                f"--learning_rate={rate:g}."
            )
        half = f", or half of --learning_rate={rate:g}"
        return (
            "Small models leave this plateau after 3 to 10 million tokens, "
            f"large ones later: try --num_train_steps={steps}"
            f"{half * (rate >= self._rate)}."
        )
