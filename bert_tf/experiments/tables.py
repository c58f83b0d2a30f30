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
from bert_tf.experiments.plan import PERPLEXITY
from bert_tf.experiments.plan import Plan
from bert_tf.flags.experiments import EXPERIMENTS
from bert_tf.flags.experiments import MODEL_EXPERIMENTS
from bert_tf.flags.experiments import STABILITY
from bert_tf.flags.experiments import ExperimentsConfig

Values = dict[str, Any]


def build(
    name: str, plan: Plan, tasks: Sequence[Task], config: ExperimentsConfig
) -> Values:
    """Returns an experiment's table and adds its cells to the plan."""
    return _Builder(name, plan, tasks, config).table()


class _Builder:
    """Collects the rows, columns and cells of a table."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        tasks: Sequence[Task],
        config: ExperimentsConfig,
    ) -> None:
        recipes = data.read_recipe("tables")
        self._recipe = recipe = recipes["tables"][name]
        self._name, self._plan, self._config = name, plan, config
        if recipe.get("by_accuracy"):  # As in Tables 5 and 6.
            others = {(data.CLASSIFICATION, "f1"): "accuracy"}
            tasks = [
                dataclasses.replace(
                    x, metric=others.get((x.kind, x.metric), x.metric)
                )
                for x in tasks
            ]
        self._tasks = tasks
        self._papers = recipes["papers"] | recipe.get("papers", {})
        self._sources = recipe.get("sources", ["corpus"])
        path = config.pretrained_model_dir
        is_read = path and "pretrained_model_dir" in self._sources
        self._model = plan.stored_model(path) if is_read else None
        self._rows: list[Values] = [dict(x) for x in recipe.get("rows", ())]
        self._columns: list[Values] = []
        self._cells: dict[tuple[str, str], Sequence[str]] = {}
        self._expected: list[list[str]] = recipe.get("expected", [])[:]

    def table(self) -> Values:
        """Returns the table with the rows of the scale."""
        {
            "table1": self._add_glue,
            "table2": self._add_ensembles,
            "table6": self._add_sizes,
            "figure5": self._add_curves,
            STABILITY: self._add_settings,
        }.get(self._name, self._add_templates)()
        scale, recipe = self._plan.scale, self._recipe
        known = scale.get("table_rows", {}).get(self._name)
        rows = [x for x in self._rows if known is None or x["name"] in known]
        pairs = itertools.product(rows, self._columns)
        cells = [[x["name"], y["name"], *self._cell(x, y)] for x, y in pairs]
        places = [x[:2] for x in cells]
        scaled_down = scale["scaled_down"]
        if self._plan.corpus and self._name not in MODEL_EXPERIMENTS:
            scaled_down = f"{scale['scaled_down_pretraining']} {scaled_down}"
        shown = ("name", "label", "metric", "higher_is_better", "paper")
        return {
            "name": self._name,
            "title": recipe["title"].format(*self._tasks),
            "question": recipe["question"],
            "kind": recipe.get("kind", "table"),
            "rows": [{x: row[x] for x in shown[:2]} for row in rows],
            "columns": [{x: each[x] for x in shown} for each in self._columns],
            "reference_row": rows[0]["name"],
            "cells": cells,
            "expected": [x for x in self._expected if x[:2] in places],
            "scaled_down": scaled_down,
        }

    def _cell(self, row: Values, column: Values) -> Sequence[str]:
        """Returns the ids of the cells of a row and a column."""
        key = row["name"], column["name"]
        if key not in self._cells:
            variant = row.get("variant", "bert")
            start = column.get("start") or self._plan.start(
                _variant(variant), column.get("step")
            )
            flags = {**row.get("flags", {}), **column.get("flags", {})}
            self._cells[key] = self._plan.finetuning(
                column["task"], start, flags, column.get("num_seeds")
            )
        return self._cells[key]

    def _add_column(
        self,
        task: Task,
        name: str = "",
        label: str = "{}",
        metric: str = "",
        paper: str = "",
        **how: Any,
    ) -> None:
        """Adds a column; in the label, {} is the task's own."""
        own = f"{task.name} {task.metric.replace('_', ' ')}"
        column = {
            "name": name or task.name,
            "label": label.format(own),
            "metric": metric or task.metric,
            "higher_is_better": metric != PERPLEXITY,
            "paper": paper or self._papers.get(task.name, task.name),
            "task": task,
        }
        self._columns.append(column | how)

    def _add_templates(self) -> None:
        """Adds the columns of tables.json, for each task."""
        starts, has_own = [], "corpus" in self._sources
        if has_own and self._plan.corpus:
            starts.append(("", "", None))
        if self._model:
            label = ", pretrained model" if starts else ""
            starts.append(("-model" if has_own else "", label, self._model))
        for task, template, (end, label, start) in itertools.product(
            self._tasks, self._recipe["columns"], starts
        ):
            if task.kind in template.get("kinds", data.KINDS):
                name = f"{task.name}{template.get('name', '')}{end}"
                self._add_column(
                    task,
                    name,
                    f"{{}}{template.get('label', '')}{label}",
                    paper=template.get("paper", ""),
                    flags=template.get("flags", {}),
                    start=start,
                )
                for row, *claim in template.get("claims", ()):
                    self._expected.append([row, name, *claim])

    def _add_sizes(self) -> None:
        """Adds a row for each size, and a column with perplexities."""
        sizes, name = [*self._plan.scale["sizes"]], "perplexity"
        label, (first, *_) = "Masked-LM perplexity", self._tasks
        self._add_column(first, name, label, PERPLEXITY, name)
        # All other sizes are compared with the largest one.
        for size in reversed(sizes):
            variant = _variant("bert")
            if size != self._plan.scale["base"]:
                variant |= {"name": f"bert_{size}", "size": size}
            label = "L={}, H={}, A={}".format(*size.split("_"))
            row = {"name": size, "label": label, "variant": variant}
            self._rows.append(row)
            self._cells[size, name] = [self._plan.perplexity(variant)]
        for task in self._tasks:
            self._add_column(task)
        # Above the largest size's, and above the next one's.
        pairs = itertools.pairwise(sizes[:-1])
        self._expected += [[x, name, "above"] for x in sizes[:-1]]
        self._expected += [[x, name, "above", y] for x, y in pairs]

    def _add_curves(self) -> None:
        """Adds a column for each number of steps."""
        (task,) = self._tasks
        for step in self._plan.scale["curve_steps"]:
            name = f"step_{step}"
            label = f"{step:,} steps, {{}}"
            self._add_column(task, name, label, paper=name, step=step)
        self._expected.append(["left_to_right", name, "below"])

    def _add_settings(self) -> None:
        """Fills in the scale's settings, and adds columns of small tasks."""
        settings = self._plan.scale[STABILITY]
        for row in self._rows:
            own = row["settings"].items()
            own = {x: settings[y] for x, y in own if y in settings}
            row["label"] = row["label"].format(**settings)
            row["flags"] = {**own, **row.get("flags", {})}
        start = None if self._plan.corpus else self._model
        count = None if self._config.num_seeds else settings.get("num_seeds")
        # A task may have fewer rows than several limits.
        tasks = {f"{x.name}-{x.num_train}": x for x in self._tasks}
        for name, task in tasks.items():
            label = f"{{}}, {task.num_train} rows"
            how = {"start": start, "num_seeds": count}
            self._add_column(task, name, label, paper="none", **how)

    def _add_glue(self) -> None:
        """Adds a column for each task, and MNLI's other one, and the mean."""
        (row,) = self._rows
        for task in self._tasks:
            self._add_column(task, start=self._model)
            if task.flags.get("task_name") == "mnli":
                ids = self._cell(row, self._columns[-1])
                label, name = "{}, mismatched", "mnli_mm"
                split = "dev_mismatched"
                ids = self._plan.other_metric(ids, task.metric, split)
                self._add_column(task, name, label, paper=name)
                self._cells[row["name"], name] = ids
        if len(self._tasks) > 1:
            groups = [self._cell(row, column) for column in self._columns]
            mean, name = self._plan.mean("average-model", groups), "average"
            self._cells[row["name"], name] = mean
            self._add_column(task, name, "Average", name, name)

    def _add_ensembles(self) -> None:
        """Adds the rows of Table 2: systems, ensembles and TriviaQA."""
        plan, (task,) = self._plan, self._tasks
        size = plan.scale["ensemble_size"]
        folder = os.path.join(self._config.data_dir, "triviaqa")
        found = [os.path.join(folder, "qa", "wikipedia-train.json")]
        if not os.path.exists(found[0]):
            found = [os.path.join(folder, "wikipedia-train.json")]
        found.append(os.path.join(folder, "evidence", "wikipedia"))
        kinds: list[tuple[str, str, Values]] = [("", "", {})]
        if all(map(os.path.exists, found)):
            flags = {
                "triviaqa_file": plan.place("triviaqa", found[0]),
                "triviaqa_evidence_dir": plan.place("evidence", found[1]),
            }
            kinds.append(("_triviaqa", ", TriviaQA first", flags))
        for end, words, flags in kinds:
            count = max(size, plan.num_seeds)
            systems = plan.finetuning(task, self._model, flags, count)
            ensemble = plan.ensemble(task, systems[:size])
            for name, label, ids in (
                ("bert_large", "One system", systems[: plan.num_seeds]),
                ("bert_large_ensemble", f"Ensemble of {size}", [ensemble]),
            ):
                row = {"name": name + end, "label": label + words}
                self._rows.append(row)
                exact = plan.other_metric(ids, "exact_match")
                self._cells[name + end, "em"] = exact
                self._cells[name + end, "f1"] = ids
        for name, metric in (("em", "exact_match"), ("f1", "f1")):
            label, paper = f"{task.name} {name.upper()}", f"dev_{name}"
            self._add_column(task, name, label, metric, paper)


def _variant(variant: str | Values) -> Values:
    """Returns a way to pretrain by its name in tables.json."""
    if not isinstance(variant, str):
        return variant
    return {"name": variant, **data.read_recipe("tables")["variants"][variant]}


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
        sources = table.get("sources", ["corpus"])
        kinds = table.get("kinds", [*data.KINDS])
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
        needs = " or --".join(table.get("sources", ["corpus"]))
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
