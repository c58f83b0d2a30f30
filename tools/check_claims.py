"""Checks the numbers on the documentation's pages against result files.

    python -m tools.check_claims          checks; `make claims`
    python -m tools.check_claims --list   prints each figure with its name

A comment names the figures that the numbers of its line show, in their order:

    12 of 13 reach the target <!-- claims: scores.reached scores.count -->

A comment alone on a line is for the rows of the next table. `gpu.table.*` means
all figures with this prefix. A number must equal its figure, rounded to the
number's digits. In the README, the start page and the summary of the results,
every number needs a figure or a mark. † marks a number whose output is not
committed; it is repeated below that summary. * means measured by hand.
"""

import functools
import gzip
import json
import math
import operator
import pathlib
import re
import statistics
import sys
from collections.abc import Iterator

import numpy as np

from bert_tf.flags.groups import FORMATS

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_RESULTS = _ROOT / "benchmarks" / "results"
_GOLDEN = _ROOT / "tests" / "golden"
_PAGES = (
    "README.md",
    "docs/index.md",
    "docs/results.md",
    "docs/concepts/exactness.md",
    "docs/concepts/goldens.md",
)
_WHOLLY_CHECKED = _PAGES[:2]
_COMMENT = re.compile(r"<!-- claims: (.*?) -->")
# Code, comments, links and names with numbers make no claims, so their numbers
# are not checked. Descriptions of pictures are.
_NOT_TEXT = re.compile(
    r"`[^`]*`|<!--.*?-->|<img alt=|src=[^>]*>|\]\([^)]*\)"
    r"|(Python|Keras|SQuAD|Apache|transformers|eedf571) [\d.]+( \w\w [\d.]+)?"
)
_NUMBER = re.compile(
    r"(?<![\w.,-])([+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?)(?!\.?\w)([†*]?)"
)
_NO_CODE = re.compile(r"(?ms)^```.*?^```")
_Tree = dict[str, "_Tree"] | float


def _read(path: pathlib.Path):
    return json.loads(path.read_text(encoding="utf-8"))


def _group(runs: Iterator[tuple]) -> dict:
    """Returns lists of scores by task and trainer."""
    scores: dict = {}
    for task, trainer, score in runs:
        scores.setdefault(task, {}).setdefault(trainer, []).append(score)
    return scores


def read_scores() -> dict[tuple[str, str], dict[str, list[float]]]:
    """Returns the scores by task and metric, then by framework."""
    return _group(
        ((task, metric), framework, score)
        for path in sorted((_RESULTS / "finetune_quality").glob("*.json"))
        for task, framework, _ in [path.stem.rsplit(".", 2)]
        for metric, score in _read(path)["scores"].items()
        # On squad2.0 both frameworks answer nothing, so skip their scores.
        if task != "squad2.0" and metric in ("accuracy", "exact_match", "f1")
    )


def compare(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Returns both means, their difference and its standard error."""
    means = statistics.mean(ours), statistics.mean(theirs)
    variances = (statistics.variance(x) / len(x) for x in (ours, theirs))
    return {
        "ours": means[0],
        "theirs": means[1],
        "difference": means[0] - means[1],
        "error": math.sqrt(sum(variances)),
    }


def is_missed(difference: float, error: float) -> bool:
    """Returns True for a score lower by over 1 point and 2 standard errors."""
    return difference < -1 and difference < -2 * error


def _score_figures() -> _Tree:
    table = {
        ".".join(key): compare(by["bert_tf"], by["transformers"])
        for key, by in read_scores().items()
    }
    missed = [is_missed(x["difference"], x["error"]) for x in table.values()]
    tasks = {name.split(".")[0].removesuffix("_features") for name in table}
    return {
        "table": table,
        "count": len(missed),
        "reached": missed.count(False),
        "data_sets": len(tasks),
        "missed_by": -min(x["difference"] for x in table.values()),
    }


def _gpu_figures() -> _Tree:
    runs = [x for x in _read(_RESULTS / "gpu_step.json") if not x["xla_flags"]]
    table = {
        run["name"].split(",")[0]: {
            "rate": run["tokens_per_second"],
            "share": 100 * run["share"],
            "gigabytes": run["bytes"] / 1e9,
        }
        for run in runs
    }
    return {"table": table}


def _recipe_figures() -> _Tree:
    runs = _read(_RESULTS / "cpu_recipe.json")
    table = {
        f"{len(run['text'].split())}_texts_{run['steps']}": {
            "steps": run["steps"],
            "tokens": run["tokens"] / 1e6,
            **({"minutes": run["seconds"] / 60} if "seconds" in run else {}),
            "processor_seconds": run["processor_seconds"],
            "accuracy": 100 * run["evaluation"]["masked_lm_accuracy"],
            "perplexity": run["evaluation"]["masked_lm_perplexity"],
            "error": run["evaluation"]["masked_lm_perplexity_error"],
        }
        for run in sorted(runs, key=lambda x: (x["text"], x["steps"]))
    }
    return {"table": table}


def _small_figures() -> _Tree:
    runs = map(_read, (_RESULTS / "small_pretraining").glob("tasks-*.json"))
    scores = _group((run["task"], run["start"], run["score"]) for run in runs)
    return {
        "table": {
            task: compare(scores[task]["recipe"], scores[task]["scratch"])
            for task in sorted(scores)
        }
    }


def _choices_figures() -> _Tree:
    rows: dict = {}
    for path in sorted((_RESULTS / "small_pretraining").glob("choices-*.json")):
        rows.setdefault(path.stem.split("-")[1].strip("_"), []).append(
            _read(path)
        )
    keys = {
        "perplexity": ("held_out", "masked_lm_perplexity"),
        "wikigold": ("wikigold",),
    }
    table = {
        row: {"steps": runs[0]["steps"]}
        | {name: _mean(runs, *key) for name, key in keys.items()}
        for row, runs in rows.items()
    }
    spread = {
        name: max(
            max(values) - min(values)
            for values in (_values(runs, *key) for runs in rows.values())
        )
        for name, key in keys.items()
    }
    return {"table": table, "spread": spread}


def _cells(folder: str) -> dict[str, list[dict]]:
    """Returns the results of each cell's seeds by the cell's name."""
    cells: dict = {}
    for path in sorted((_RESULTS / folder).glob("*.json")):
        cells.setdefault(path.stem.rpartition(".")[0], []).append(_read(path))
    return cells


def _values(results: list[dict], *keys: str) -> list[float]:
    """Returns the values under nested keys."""
    return [functools.reduce(operator.getitem, keys, x) for x in results]


def _mean(results: list[dict], *keys: str) -> float:
    return statistics.mean(_values(results, *keys))


def _few_labels_figures() -> _Tree:
    cells = _cells("few_shot")
    table: dict = {}
    for name in ("banking77-8", "banking77-16", "clinc150-8"):
        ours, linear = (
            [x["accuracy"] for x in cells[f"{name}.{method}"]]
            for method in ("few_shot", "linear")
        )
        gains = [x - y for x, y in zip(ours, linear, strict=True)]
        table[name] = {
            "few_shot": statistics.mean(ours),
            "linear": statistics.mean(linear),
            "gain": statistics.mean(gains),
            "gain_error": statistics.stdev(gains) / math.sqrt(len(gains)),
            **{
                x: _mean(cells[f"{name}.{x}"], "accuracy")
                for x in ("setfit", "fine_tuning")
            },
        }
    return {"table": table}


def _embeddings_figures() -> _Tree:
    cells = _cells("embeddings_quality")
    scores = {"qnli": ("mrr@10", "ndcg@10"), "snli": ("spearmanr",)}
    return {
        "table": {
            f"{task}_{score.partition('@')[0]}": {
                framework: 100
                * _mean(cells[f"{task}.{framework}"], "scores", score)
                for framework in ("start", "bert_tf", "sentence_transformers")
            }
            for task, names in scores.items()
            if f"{task}.bert_tf" in cells
            for score in names
        }
    }


def _confidence_figures() -> _Tree:
    cells: dict = {}
    for path in sorted((_RESULTS / "confidence").glob("*.json")):
        result = _read(path)
        cells.setdefault(result["settings"]["set"], []).append(result)
    keys = ("accuracy", "error_without", "error", "coverage", "precision")
    table = {
        name: {key: 100 * _mean(cells[name], key) for key in keys}
        for name in sorted(cells)
    }
    outside = ("outside_auroc", "outside_recall_at_95")
    return {
        "table": table,
        "outside": {
            key: 100 * _mean(cells[name], key)
            for name in cells.keys() & {"clinc150"}
            for key in outside
        },
    }


def _distillation_figures() -> _Tree:
    cells = _cells("distillation")
    table = {}
    for student in ("wide", "narrow"):
        if f"{student}.logits" not in cells:
            continue
        labels, logits = (
            cells[f"{student}.{recipe}"] for recipe in ("labels", "logits")
        )
        table[student] = {
            "labels": 100 * _mean(labels, "accuracy"),
            "logits": 100 * _mean(logits, "accuracy"),
            "share": 100
            * statistics.mean(
                x["accuracy"] / x["teacher_accuracy"] for x in logits
            ),
            "megabytes": _mean(logits, "int8", "megabytes"),
        }
    return {
        "table": table,
        **{
            name: 100 * _mean(cells[cell], "accuracy")
            for name, cell in (
                ("teacher", "teacher.labels"),
                ("hidden_first", "wide.hidden_first"),
            )
        },
    }


def _abuse_figures() -> _Tree:
    table = {}
    for name in ("savedmodel", "litert", "soak_savedmodel"):
        report = _read(_RESULTS / "abuse" / f"{name}.json")
        attacks = report["attacks"]
        table[name] = {
            "attacks": len(attacks),
            "honest": sum(x["honest"] for x in attacks),
            "failed": sum(x["honest_errors"] for x in attacks),
            "idle": report["idle_bytes"] / 2**20,
            "peak": max(x["most_bytes"] for x in attacks) / 2**20,
            "slow": sum(x["p99"] > 1 for x in attacks),
        }
    both = table["savedmodel"], table["litert"]
    sums = {key: sum(x[key] for x in both) for key in ("honest", "failed")}
    return {"table": table, "both": sums}


def _topics_figures() -> _Tree:
    folder = _RESULTS / "topics"
    lines = (folder / "train_metrics.jsonl").read_text("utf-8").splitlines()
    accuracies = _read(folder / "dev_accuracy.json")
    return {
        "steps": int([*accuracies][-1]),
        "first_loss": json.loads(lines[0])["loss"],
        "last_loss": json.loads(lines[-1])["loss"],
        "accuracy": 100 * [*accuracies.values()][-1],
    }


def _original_figures() -> _Tree:
    points = np.load(_GOLDEN / "tokenization" / "codepoints_uncased.npz")
    with gzip.open(_GOLDEN / "tokenization" / "strings.jsonl.gz") as file:
        strings = sum(1 for _ in file)
    trajectory = _read(_GOLDEN / "model" / "optimizer_trajectory.json")
    measured = _read(_RESULTS / "equality.json")
    return {
        "table": {
            "characters": len(points["codepoints"]),
            "strings": strings,
            "activations": measured["activations"],
            "gradients": measured["gradients"],
            "steps": len(trajectory["losses_before_each_step"]),
            "losses": measured["losses_of_25_steps"],
            "state": measured["state_after_25_steps"],
        }
    }


def read_figures() -> dict[str, float]:
    """Returns every figure that a page may show, by its name."""
    models = _read(_ROOT / "bert_tf" / "recipes" / "models.json")["models"]
    table = _ROOT / "docs" / "samples" / "topics" / "train.csv"
    answers = (_RESULTS / "answer_texts.txt").read_text("utf-8").splitlines()
    return dict(
        _flatten(
            {
                "scores": _score_figures(),
                "gpu": _gpu_figures(),
                "recipe": _recipe_figures(),
                "small": _small_figures(),
                "choices": _choices_figures(),
                "few_labels": _few_labels_figures(),
                "embeddings": _embeddings_figures(),
                "confidence": _confidence_figures(),
                "distillation": _distillation_figures(),
                "abuse": _abuse_figures(),
                "topics": _topics_figures(),
                "sentences": table.read_text("utf-8").count("\n") - 1,
                "original": _original_figures(),
                "models_by_name": len(models),
                "format_pairs": len(FORMATS) ** 2,
                # The last line is such as "32 of 41340 spans differ."
                "answers.differ": int(answers[-1].split()[0]),
                "answers.spans": int(answers[-1].split()[2]),
            }
        )
    )


def _flatten(tree: _Tree, prefix: str = "") -> Iterator[tuple[str, float]]:
    if not isinstance(tree, dict):
        yield prefix, tree
        return
    for name, part in tree.items():
        yield from _flatten(part, f"{prefix}.{name}" if prefix else name)


def shows(number: str, figure: float) -> bool:
    """Returns True if a number is the figure, rounded to the number's digits.

    547,000 shows 546,907: the zeros at the end of an integer do not count, but
    the first three digits always do.
    """
    digits, _, exponent = number.replace(",", "").strip("+-").partition("e")
    whole, _, decimals = digits.partition(".")
    zeros = len(whole) - max(len(whole.rstrip("0")), 3) if not decimals else 0
    unit = 10.0 ** (int(exponent or 0) + max(zeros, 0) - len(decimals))
    return abs(float(number.replace(",", "")) - figure) <= 0.501 * unit


def _errors(text: str, names: str, figures: dict[str, float]) -> Iterator[str]:
    """Yields the errors in the unmarked numbers of a line or table."""
    expected = [
        x
        for name in names.split()
        for x in figures
        if x == name or name[-1] == "*" and x.startswith(name[:-1])
    ]
    shown = [x for x, mark in _NUMBER.findall(text) if not mark]
    if len(shown) != len(expected):
        yield f"numbers {shown} for the figures {expected} of {names!r}"
        return
    for number, name in zip(shown, expected, strict=True):
        if not shows(number, figures[name]):
            yield f"{number} for {name}, which is {figures[name]:.6g}"


def check(
    page: str, checked: str, body: str, figures: dict[str, float]
) -> Iterator[str]:
    """Yields the errors of a page.

    Args:
      page: The page's text.
      checked: The beginning of the page, where every number is checked.
      body: The text that must contain each number with the mark †, too.
      figures: The figures by name.
    """
    count = checked.count("\n")
    in_body = {number for number, _ in _NUMBER.findall(body)}
    page = _NO_CODE.sub(lambda x: "\n" * x[0].count("\n"), page)
    lines = page.splitlines()
    for index, line in enumerate(lines):
        names = " ".join(_COMMENT.findall(line))
        text = _NOT_TEXT.sub(" ", line)
        if line.startswith("<!-- claims"):
            rows = "\n".join(lines[index + 2 :]).split("\n\n")[0].splitlines()
            text = _NOT_TEXT.sub(" ", "\n".join(rows[2:]))
        elif index < count:
            for number, mark in _NUMBER.findall(text):
                if mark == "†" and number not in in_body:
                    yield f"{index + 1}: {number}† is not in the results"
        elif not names:
            continue
        for error in _errors(text, names, figures):
            yield f"{index + 1}: {error}"


def main(args: list[str]) -> int:
    """Checks all pages, or lists the figures; returns the exit status."""
    figures = read_figures()
    if args == ["--list"]:
        print("\n".join(f"{x} {figures[x]:.8g}" for x in figures))
        return 0
    texts = {x: (_ROOT / x).read_text(encoding="utf-8") for x in _PAGES}
    summary, _, body = texts["docs/results.md"].partition("\n## ")
    checked = {x: texts[x] for x in _WHOLLY_CHECKED}
    checked["docs/results.md"] = summary
    errors = [
        f"{name}:{error}"
        for name, text in texts.items()
        for error in check(text, checked.get(name, ""), body, figures)
    ]
    print("\n".join(errors) or "The pages show the committed figures.")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
