"""Inputs of each experiment: which tasks it uses, and what is missing."""

import dataclasses
import os
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from bert_tf.errors import UserError
from bert_tf.experiments import task_folders
from bert_tf.experiments.scales import Scale
from bert_tf.experiments.task_folders import TaskFolder
from bert_tf.flags.experiments import EXPERIMENTS
from bert_tf.flags.experiments import MODEL_EXPERIMENTS
from bert_tf.flags.experiments import STABILITY
from bert_tf.flags.experiments import ExperimentsConfig

_SENTENCES = (
    task_folders.CLASSIFICATION,
    task_folders.REGRESSION,
    task_folders.MULTIPLE_CHOICE,
)
_EVERY = tuple(task_folders.METRICS)
# Experiment to the kinds of tasks that it can use.
_KINDS: Mapping[str, Sequence[str]] = {
    "table5": _EVERY,
    "table6": _EVERY,
    "table7": (task_folders.TAGGING,),
    "table8": _EVERY,
    "figure5": _EVERY,
    STABILITY: (task_folders.CLASSIFICATION,),
    "table1": _SENTENCES[:2],
    "table2": (task_folders.SQUAD,),
    "table3": (task_folders.SQUAD2,),
    "table4": (task_folders.MULTIPLE_CHOICE,),
}
# Those that use one task.
_OF_ONE_TASK = ("figure5", "table2", "table3", "table4")
_QUESTIONS = {
    "table5": "pretraining tasks: no NSP, left-to-right, BiLSTM",
    "table6": "model sizes, with perplexities",
    "table7": "features from a frozen encoder, and fine-tuning",
    "table8": "rates of [MASK], unchanged and random tokens",
    "figure5": "accuracy against steps of pretraining",
    STABILITY: "failed runs on small training sets",
    "table1": "GLUE, with its average",
    "table2": "SQuAD 1.1, ensemble, TriviaQA first",
    "table3": "SQuAD 2.0",
    "table4": "SWAG",
}


def choose(
    config: ExperimentsConfig, scale: Scale, found: Mapping[str, TaskFolder]
) -> dict[str, list[TaskFolder]]:
    """Returns the tasks of each experiment in --experiments.

    Raises:
      UserError: If an experiment lacks the corpus, the model or a task; names
        those that can run.
    """
    unknown = [x for x in config.task_names if x not in found]
    if unknown:
        files = "; ".join(map(task_folders.expected_files, unknown))
        known = ",".join(x for x in config.task_names if x in found)
        known = known or ",".join(found)
        start = f"With --tasks={known}"
        others = dataclasses.replace(config, tasks=known)
        raise UserError(
            f"--tasks={','.join(unknown)}: --data_dir={config.data_dir} must "
            f"have {files}. Found: {', '.join(found) or 'no task'}. "
            + _instead(others, scale, found, start)
        )
    chosen, missing = {}, {}
    for name in config.names:
        tasks, lacking = _tasks(name, config, scale, found)
        lacking = [*_other_needs(name, config), *lacking]
        if lacking:
            missing[name] = lacking
        else:
            chosen[name] = tasks
    if missing:
        wants = "; ".join(
            f"{name} needs {' and '.join(x)}" for name, x in missing.items()
        )
        if chosen:
            rest = f"Without it run --experiments={','.join(chosen)}."
        else:
            rest = _instead(config, scale, found, "Without it", wants)
        raise UserError(f"{wants}. {rest}")
    return chosen


def _instead(
    config: ExperimentsConfig,
    scale: Scale,
    found: Mapping[str, TaskFolder],
    start: str,
    wants: str = "",
) -> str:
    """Returns a sentence with the experiments that can run.

    If none can, with those of a flag that is not set and not in `wants`.
    """
    if names := _possible(config, scale, found):
        return f"{start} run --experiments={','.join(names)}."
    for flag in ("pretrained_model_dir", "corpus"):
        if not getattr(config, flag) and f"--{flag}" not in wants:
            other = dataclasses.replace(config, **{flag: "set"})
            if names := _possible(other, scale, found):
                return (
                    f"{start} and with --{flag} run "
                    f"--experiments={','.join(names)}."
                )
    return "No experiment can run without it; --list prints what each needs."


def _possible(
    config: ExperimentsConfig, scale: Scale, found: Mapping[str, TaskFolder]
) -> list[str]:
    """Returns the experiments that lack nothing."""
    return [
        name
        for name in EXPERIMENTS
        if not _other_needs(name, config)
        and not _tasks(name, config, scale, found)[1]
    ]


def _other_needs(name: str, config: ExperimentsConfig) -> list[str]:
    """Returns the flags that an experiment lacks."""
    flags = _source(name)
    has_any = any(getattr(config, x.removeprefix("--")) for x in flags)
    return [] if has_any else [_join(flags)]


def _source(name: str) -> Sequence[str]:
    """Returns the flags of which an experiment needs one, for its models."""
    if name in MODEL_EXPERIMENTS:
        return ("--pretrained_model_dir",)
    if name in ("table7", STABILITY):
        return ("--corpus", "--pretrained_model_dir")
    return ("--corpus",)


def _tasks(
    name: str,
    config: ExperimentsConfig,
    scale: Scale,
    found: Mapping[str, TaskFolder],
) -> tuple[list[TaskFolder], list[str]]:
    """Returns the tasks of an experiment, and phrases for missing ones."""
    kinds = _KINDS[name]
    if config.task_names:
        tasks = [found[x] for x in config.task_names if found[x].kind in kinds]
        lacking = [] if tasks else [f"a task of {_join(kinds)} in --tasks"]
    else:
        tasks, lacking = [], []
        for alternatives in scale.tasks[name]:
            task = _first(alternatives, kinds, found)
            if task is None:
                lacking.append(_missing(alternatives, kinds))
            elif task not in tasks:
                tasks.append(task)
    if name in _OF_ONE_TASK:
        tasks = tasks[:1]
    return tasks, lacking


def _first(
    alternatives: str, kinds: Sequence[str], found: Mapping[str, TaskFolder]
) -> TaskFolder | None:
    """Returns the first task among NAME|NAME|*KIND that exists."""
    for word in alternatives.split("|"):
        kind = word.removeprefix("*")
        if word == kind and word in found:
            return found[word]
        for task in found.values():
            if word != kind and task.kind == kind and kind in kinds:
                return task
    return None


def _missing(alternatives: str, kinds: Sequence[str]) -> str:
    words = alternatives.split("|")
    names = [x for x in words if not x.startswith("*")]
    if len(names) < len(words):
        return f"a task of {_join(kinds)} in --data_dir"
    files = " or ".join(map(task_folders.expected_files, names))
    return f"the task {' or '.join(names)} in --data_dir ({files})"


def _join(kinds: Iterable[str]) -> str:
    return " or ".join(kinds)


def find_triviaqa(data_dir: str | None) -> tuple[str, str] | None:
    """Returns TriviaQA's questions and evidence, if --data_dir has both."""
    folder = os.path.join(data_dir or "", "triviaqa")
    evidence = os.path.join(folder, "evidence", "wikipedia")
    for name in ("qa/wikipedia-train.json", "wikipedia-train.json"):
        path = os.path.join(folder, name)
        if data_dir and os.path.isfile(path) and os.path.isdir(evidence):
            return path, evidence
    return None


def describe(
    scale: Scale,
    found: Mapping[str, TaskFolder],
    data_dir: str | None = None,
) -> str:
    """Returns the text of --list."""
    lines = [f"Experiments, with their tasks at --scale={scale.name}:"]
    for name in EXPERIMENTS:
        tasks = ", ".join(
            x.replace("|", " or ").replace("*", "any ")
            for x in scale.tasks[name]
        )
        lines.append(f"  {name:<10} {_QUESTIONS[name]}")
        needs = _join(_source(name))
        lines.append(f"             needs {needs}; tasks: {tasks}")
        if name == "table2":
            state = "found" if find_triviaqa(data_dir) else "not found"
            lines.append(
                "             optional: triviaqa/ with wikipedia-train.json "
                f"or qa/wikipedia-train.json, and evidence/wikipedia/: {state}"
            )
    lines.append("\nTasks found in --data_dir:")
    for task in found.values():
        lines.append(f"  {task.name:<12} {task.kind}, {task.metric}")
        for split, path in task.files.items():
            lines.append(f"               {split:<15} {path}")
        if not any(x.startswith("dev") for x in task.files):
            lines.append("               dev             a part of train")
    if not found:
        lines.append("  none")
    wanted = sorted(
        {
            word
            for name in EXPERIMENTS
            for entry in scale.tasks[name]
            for word in entry.split("|")
            if not word.startswith("*") and word not in found
        }
    )
    if wanted:
        lines.append("\nNot found:")
    for name in wanted:
        files = task_folders.expected_files(name)
        lines.append(f"  {name:<12} {files}")
    lines.append(
        "\nAny other folder of --data_dir is a task if it has a task.json: "
        '{"kind": "classification", "train": "train.tsv", "dev": "dev.tsv", '
        '"columns": {"text": "sentence", "label": "label"}, "metric": '
        '"accuracy"}. Kinds: ' + ", ".join(_EVERY) + "."
    )
    return "\n".join(lines) + "\n"
