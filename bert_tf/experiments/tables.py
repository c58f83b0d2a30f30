"""The paper's tables and figures: their rows, columns and cells.

`recipes/experiments/tables.json` has what does not depend on the scale. A table
is JSON values for the report. Its `kind` is "table"; "curve", whose columns are
numbers of steps; or "spread", whose cells show how far seeds differ.
`cells` is [row, column, ids of cells, one for each seed...], `expected` [row,
column, "below" or "above"]: the sign of the paper's difference to the
`reference_row`, or to a row named by a fourth value.
"""

import dataclasses
import itertools
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.errors import UserError
from bert_tf.experiments import data
from bert_tf.experiments.data import Task
from bert_tf.experiments.plan import AVERAGE
from bert_tf.experiments.plan import PERPLEXITY
from bert_tf.experiments.plan import Plan
from bert_tf.flags.experiments import EXPERIMENTS
from bert_tf.flags.experiments import MODEL_EXPERIMENTS
from bert_tf.flags.experiments import ExperimentsConfig

Values = dict[str, Any]


def build(
    name: str, plan: Plan, tasks: Sequence[Task], config: ExperimentsConfig
) -> Values:
    """Returns an experiment's table and adds its cells to the plan."""
    recipe, scale = data.read_recipe("tables")["tables"][name], plan.scale
    count = scale.get(name, {}).get("num_seeds", scale["num_seeds"])
    rows = _rows(name, recipe, plan, config)
    columns, expected = _columns(recipe, plan, tasks, config)
    expected += scale["expected"].get(name, [])
    cells: dict[tuple[str, str], Sequence[str]] = {}
    for row in rows:
        ids: list[Sequence[str]] = []
        for column in columns:
            ids.append(
                plan.average(ids)
                if column["metric"] == AVERAGE
                else _cell(plan, row, column, config.num_seeds or count)
            )
            cells[row["name"], column["name"]] = ids[-1]
    scaled_down = scale["scaled_down"]
    if plan.corpus and name not in MODEL_EXPERIMENTS:
        scaled_down = f"{scale['scaled_down_pretraining']} {scaled_down}"
    shown = ("name", "label", "metric", "higher_is_better", "paper")
    return {
        "name": name,
        "title": recipe["title"].format(*tasks),
        "question": recipe["question"],
        "kind": recipe.get("kind", "table"),
        "rows": [{x: row[x] for x in shown[:2]} for row in rows],
        "columns": [{x: each[x] for x in shown} for each in columns],
        "reference_row": rows[0]["name"],
        "cells": [[*place, *ids] for place, ids in cells.items()],
        "expected": [x for x in expected if tuple(x[:2]) in cells],
        "scaled_down": scaled_down,
    }


def _rows(
    name: str, recipe: Values, plan: Plan, config: ExperimentsConfig
) -> list[Values]:
    """Returns the rows that the scale and the files in --data_dir allow."""
    found, values = [], plan.scale | plan.scale.get(name, {})
    # All other sizes are compared with the largest one.
    sizes = [{"name": x, "size": x} for x in reversed(values["sizes"])]
    for row in recipe.get("rows", sizes):
        label = row.get("label", "L={}, H={}, A={}")
        label = label.format(*row["name"].split("_"), **values)
        settings = row.get("settings", {}).items()
        flags = {x: values[y] for x, y in settings if y in values}
        flags |= row.get("flags", {})
        for flag, place, *paths in row.get("places", ()):
            paths = [os.path.join(config.data_dir, x) for x in paths]
            path = next(filter(os.path.exists, paths), None)
            flags[flag] = path and plan.place(place, path)
        known = values.get("table_rows", {}).get(name, [row["name"]])
        if row["name"] in known and None not in flags.values():
            found.append({**row, "label": label, "flags": flags})
    return found


def _columns(
    recipe: Values, plan: Plan, tasks: Sequence[Task], config: ExperimentsConfig
) -> tuple[list[Values], list[list[str]]]:
    """Returns the columns of all tasks, and the signs that the paper claims."""
    papers = data.read_recipe("tables")["papers"] | recipe.get("papers", {})
    metrics, path = recipe.get("metrics", {}), config.pretrained_model_dir
    starts = [None] if plan.corpus and "corpus" in recipe["sources"] else []
    if path and "pretrained_model_dir" in recipe["sources"]:
        starts.append(plan.stored_model(path))
    if "model_column" not in recipe:
        starts = starts[:1]
    found, expected = {}, recipe.get("expected", [])[:]
    for task, template, start in itertools.product(
        tasks, recipe["columns"], starts
    ):
        at = "first" if task is tasks[0] else "last" * (task is tasks[-1])
        conditions = {"kinds": task.kind, "official": task.official, "at": at}
        if any(y not in template.get(x, [y]) for x, y in conditions.items()):
            continue
        metric = metrics.get(f"{task.kind} {task.metric}", task.metric)
        own = f"{task.name} {metric.replace('_', ' ')}"
        column = {"name": "{task.name}", "label": "{own}", "metric": metric}
        column |= {"paper": papers.get(task.name, "{task.name}"), **template}
        column["higher_is_better"] = column["metric"] != PERPLEXITY
        column["task"] = dataclasses.replace(task, metric=metric)
        column["start"] = start
        if start:
            column["name"] += recipe.get("model_column", "")
            column["label"] += ", pretrained model" * (len(starts) > 1)
        for step in plan.scale.get(template.get("each"), [None]):
            words = {"task": task, "own": own, "step": step}
            shown = ("name", "label", "paper")
            shown = {x: column[x].format(**words) for x in shown}
            found[shown["name"]] = {**column, **shown, "step": step}
            for row, *claim in template.get("claims", ()):
                expected.append([row, shown["name"], *claim])
    return [*found.values()], expected


def _cell(
    plan: Plan, row: Values, column: Values, num_seeds: int
) -> Sequence[str]:
    """Returns the ids of the cells of a row and a column."""
    scale, task, name = plan.scale, column["task"], row.get("variant", "bert")
    variant = {"name": name, **data.read_recipe("tables")["variants"][name]}
    if (size := row.get("size", scale["base"])) != scale["base"]:
        variant |= {"name": f"{name}_{size}", "size": size}
    if column["metric"] == PERPLEXITY:
        return [plan.perplexity(variant)]
    start = column["start"] or plan.start(variant, column["step"])
    flags = row["flags"] | column.get("flags", {})
    systems = scale["ensemble_size"] if row.get("ensemble") else None
    cells = plan.finetuning(task, start, flags, systems or num_seeds)
    if systems:
        cells = [plan.ensemble(task, cells)]
    if "split" in column or column["metric"] != task.metric:
        cells = plan.other_metric(cells, column["metric"], column.get("split"))
    return cells


# === What each experiment needs ===


def choose_tasks(
    config: ExperimentsConfig, scale: Values, found: Mapping[str, Task]
) -> dict[str, list[Task]]:
    """Returns the tasks of each experiment in --experiments.

    Raises:
      UserError: If an experiment lacks the corpus, the model or a task.
    """
    if unknown := [x for x in config.task_names if x not in found]:
        raise UserError(
            f"--tasks={','.join(unknown)} must be in --data_dir="
            f"{config.data_dir}. Found: {', '.join(found) or 'no task'}."
        )
    chosen = {}
    for name in config.names:
        table = data.read_recipe("tables")["tables"][name]
        sources, kinds = table["sources"], table.get("kinds", [*data.KINDS])
        known = {x: y for x, y in found.items() if y.kind in kinds}
        lacking, tasks = [], [x for x in config.task_names if x in known]
        if not any(getattr(config, x) for x in sources):
            lacking.append(" or ".join(f"--{x}" for x in sources))
        if config.task_names and not tasks:
            lacking.append(f"a task of {' or '.join(kinds)} in --tasks")
        for words in [] if config.task_names else scale["tasks"][name]:
            names = [
                task.name
                for word in words.split("|")
                for task in known.values()
                if word in (task.name, f"*{task.kind}")
            ]
            tasks += names[:1]
            if not names:
                lacking.append(f"{_readable(words)} in --data_dir")
        if lacking:
            raise UserError(
                f"{name} needs {' and '.join(lacking)}; --list prints what "
                "each experiment needs."
            )
        tasks = [known[x] for x in dict.fromkeys(tasks)]
        chosen[name] = tasks[:1] if table.get("one_task") else tasks
    return chosen


def _readable(tasks: str) -> str:
    return tasks.replace("|", " or ").replace("*", "any ")


def describe(
    scale: Values, found: Mapping[str, Task], config: ExperimentsConfig
) -> str:
    """Returns the text of --list."""
    lines = [f"Experiments, with their tasks at --scale={config.scale}:"]
    for name in EXPERIMENTS:
        table = data.read_recipe("tables")["tables"][name]
        needs = " or --".join(table["sources"])
        tasks = ", ".join(map(_readable, scale["tasks"][name]))
        lines.append(f"  {name:<10} {table['summary']}")
        lines.append(f"             needs --{needs}; tasks: {tasks}")
    lines.append("\nTasks found in --data_dir:" + "\n  none" * (not found))
    for x in found.values():
        where = ", ".join(x.files.values())
        lines.append(f"  {x.name:<12} {x.kind}, {x.metric}: {where}")
    for name, known in data.read_recipe("tasks")["tasks"].items():
        if name not in found:
            where = f"{known['folder']}/{known['train'][0]}"
            lines.append(f"  {name:<12} not found: {where} and others")
    lines.append(data.read_recipe("tasks")["help"])
    return "\n".join(lines) + "\n"
