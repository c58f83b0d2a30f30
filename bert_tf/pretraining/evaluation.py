"""Losses and accuracies of pretraining on held-out records."""

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_tf.distribute import batches as batches_lib
from bert_tf.features import INPUT_IDS
from bert_tf.io import progress
from bert_tf.training import losses
from bert_tf.training import unpad as unpadding

# An evaluation during training reads 64 batches. Then training continues for at
# least 150 seconds and 40 times the evaluation's time: the cost is below 3%.
HELD_OUT_BATCHES = 64
_SECONDS_BETWEEN = 150.0
_TIMES_ITS_COST = 40.0


def build_evaluation(
    model,
    dataset: tf.data.Dataset,
    max_eval_steps: int | None = None,
    strategy: tf.distribute.Strategy | None = None,
    use_next_sentence: bool = True,
    show_progress: bool = True,
    unpad: bool = False,
) -> Callable[[int], dict[str, float | int]]:
    """Returns a function that computes losses and accuracies of all examples.

    The function takes the number of steps done, and is traced only once. All
    workers get equal results.

    Each result is a weighted mean over all predictions or examples, as in the
    original (metric_fn, run_pretraining.py:188-231). A mean over the means of
    batches would depend on the batch size. Blank rows, which only fill batches,
    are ignored.

    `masked_lm_perplexity` is exp(`masked_lm_loss`) (Table 6 of the paper). In a
    left-to-right model, it is the next-token perplexity. Its standard error,
    `masked_lm_perplexity_error`, assumes that batches are independent. On other
    text of the same kind, the perplexity would differ by about this error.

    The results are `global_step`, `loss` (the sum of both losses),
    `masked_lm_accuracy`, `masked_lm_loss`, `masked_lm_perplexity` (unless
    nothing was predicted), `masked_lm_perplexity_error` (with two batches or
    more) and, with `use_next_sentence`, `next_sentence_accuracy` and
    `next_sentence_loss`.

    `dataset` is the result of `PretrainingInput.evaluation_dataset`. By default
    all its batches are evaluated, with the current strategy. With `unpad`, the
    model skips padding.
    """
    strategy = strategy or tf.distribute.get_strategy()
    if max_eval_steps is not None:
        dataset = dataset.take(max_eval_steps)
    plan = batches_lib.StepPlan(
        dataset.element_spec[INPUT_IDS.name].shape[0],
        strategy.num_replicas_in_sync,
    )
    longest = dataset.element_spec[INPUT_IDS.name].shape[1:]
    transform = unpadding.token_finder(plan, longest) if unpad else None

    objective = losses.PretrainingObjective(use_next_sentence)

    def compute_sums(rows):
        outputs = model(losses.model_inputs(objective.inputs, rows))
        sums = objective.compute_sums(outputs, rows)
        weights, examples = tf.unstack(objective.count(rows))
        return sums | {"masked_lm_weights": weights, "examples": examples}

    @tf.function(autograph=False)
    def compute_batch(rows):
        sums = strategy.run(compute_sums, (rows,))
        return {
            name: strategy.reduce(tf.distribute.ReduceOp.SUM, value, None)
            for name, value in sums.items()
        }

    def compute(global_step: int) -> dict[str, float | int]:
        # Sum in float64, because long sums in float32 lose small terms.
        totals: dict[str, np.float64] = {}
        batches: list[tuple[float, float]] = []
        total = int(dataset.cardinality())
        with progress.bar(
            total, "evaluating", "batch", hidden=not show_progress
        ) as bar:
            for rows in batches_lib.distribute_batches(
                strategy, dataset, plan, finite=True, transform=transform
            ):
                sums = {
                    name: np.float64(value)
                    for name, value in compute_batch(rows).items()
                }
                for name, value in sums.items():
                    totals[name] = totals.get(name, 0.0) + value
                batches.append(
                    (sums["masked_lm_sum"], sums["masked_lm_weights"])
                )
                bar.update(1)
        results = _means(totals) | {"global_step": global_step}
        if len(batches) > 1 and "masked_lm_perplexity" in results:
            # The standard error of the mean loss, sum(losses) / sum(weights).
            losses, weights = np.transpose(batches)
            residuals = losses - losses.sum() / weights.sum() * weights
            variance = len(batches) * np.var(residuals, ddof=1)
            error = np.sqrt(variance) / weights.sum()
            error *= results["masked_lm_perplexity"]
            results["masked_lm_perplexity_error"] = float(error)
        return results

    return compute


@dataclasses.dataclass
class HeldOut:
    """Scores a fixed part of the held-out records during training.

    `evaluate` is the result of `build_evaluation` for these records.
    """

    evaluate: Callable[[int], dict[str, float | int]]
    _due: float = 0.0

    def start(self) -> None:
        """Starts the first pause: a score of new weights would be useless."""
        self._due = time.monotonic() + _SECONDS_BETWEEN

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due

    def score(self, step: int) -> dict[str, float | int]:
        """Computes the score, and the time when the next score is due."""
        start = time.monotonic()
        results = self.evaluate(step)
        seconds = time.monotonic() - start
        pause = max(_SECONDS_BETWEEN, _TIMES_ITS_COST * seconds)
        self._due = time.monotonic() + pause
        return results


def _means(totals: Mapping[str, np.float64]) -> dict[str, float]:
    # Avoid 0 / 0 if the evaluated records contain no prediction.
    weights = totals["masked_lm_weights"] or 1.0
    means = {
        "masked_lm_accuracy": totals["masked_lm_correct"] / weights,
        "masked_lm_loss": totals["masked_lm_sum"] / weights,
    }
    loss = means["masked_lm_loss"]
    if totals["masked_lm_weights"]:
        means["masked_lm_perplexity"] = np.exp(loss)
    if "next_sentence_sum" in totals:
        examples = totals["examples"]
        means |= {
            "next_sentence_accuracy": (
                totals["next_sentence_correct"] / examples
            ),
            "next_sentence_loss": totals["next_sentence_sum"] / examples,
        }
        loss = loss + means["next_sentence_loss"]
    return {name: float(mean) for name, mean in means.items()} | {
        "loss": float(loss)
    }
