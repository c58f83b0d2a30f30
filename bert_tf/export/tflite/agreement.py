"""How often a rounded model says the same as the model, whatever the numbers.

Shapes:
  N: any number of rows, of any rank.
  C: what is chosen from.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

_THRESHOLD = 0.5

_Arrays = Mapping[str, np.ndarray]
_Choose = Callable[[np.ndarray], np.ndarray]


def measure(
    expected: Sequence[_Arrays],
    given: Sequence[_Arrays],
    is_multi_label: bool = False,
) -> dict[str, float]:
    """Returns a number for each output for which there is one.

    Args:
      expected: By call and output what the model says.
      given: What the file says.
      is_multi_label: Whether `probabilities` are of labels of which each is
        given by itself.

    Returns:
      By output: how many of the choices are the same, between 0 and 1; of
      `embedding` the least cosine.
    """
    choices = _choices(expected[0], is_multi_label)
    found = {}
    for name in expected[0]:
        pairs = [
            (wanted[name], answer[name])
            for wanted, answer in zip(expected, given, strict=True)
        ]
        if name in choices:
            found[f"agreement of {name}"] = _share(pairs, choices[name])
        elif name == "embedding":
            found["least cosine"] = min(_cosine(*pair) for pair in pairs)
    return found


def _choices(
    outputs: Collection[str], is_multi_label: bool
) -> Mapping[str, _Choose]:
    """Returns what each output chooses, by name."""
    if "token_ids" in outputs:
        # The probabilities beside them fall, so that the first is the largest.
        return {"token_ids": _first}
    return {
        "probabilities": _given_labels if is_multi_label else _best,
        "start_logits": _best,
        "end_logits": _best,
    }


def _share(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
    choose: _Choose,
) -> float:
    """Returns how many of the choices are the same."""
    same = [choose(wanted) == choose(given) for wanted, given in pairs]
    same = np.concatenate([np.ravel(one) for one in same])
    return float(same.mean()) if same.size else 1.0


def _best(values: np.ndarray) -> np.ndarray:
    """Returns the place of the largest of [N, C], [N]."""
    return values.argmax(-1)


def _given_labels(values: np.ndarray) -> np.ndarray:
    return values >= _THRESHOLD


def _first(values: np.ndarray) -> np.ndarray:
    return values[..., 0]


def _cosine(wanted: np.ndarray, given: np.ndarray) -> float:
    """Returns the least cosine of two arrays of vectors, [N, C] each."""
    norms = np.linalg.norm(wanted, axis=-1) * np.linalg.norm(given, axis=-1)
    return float(((wanted * given).sum(-1) / norms).min())
