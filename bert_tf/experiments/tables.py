"""The paper's tables and figures: their rows, columns and cells.

`recipes/experiments/tables.json` has what does not depend on the scale. A table
is JSON values, as they are stored for the report:

  name, title, question: For readers.
  kind: "table"; "curve", whose columns are numbers of steps; or "spread", whose
    cells show how far seeds differ.
  rows, columns: In the paper's order, each with its `name` and `label`; a
    column has its `metric`, `higher_is_better`, and the name of the `paper`'s
    column that it stands for.
  reference_row: The name of the row that others are compared with.
  cells: [row, column, ids of cells, one for each seed...].
  expected: [row, column, "below" or "above"]: the sign of the paper's
    difference to the reference row, or to a row named by a fourth value.
  scaled_down: Sentences on what is smaller than in the paper.
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

# The paper's columns for tasks with other names.
_PAPER_COLUMNS = {"sst-2": "sst2", "sts-b": "stsb"}
_DEV_COLUMNS = {"mnli": "mnli_m", "swag": "dev", "squad2": "dev_f1"}

Values = dict[str, Any]


def build(
    name: str, plan: Plan, tasks: Sequence[Task], config: ExperimentsConfig
) -> Values:
    """Returns an experiment's table and adds its cells to the plan."""
    table = {"kind": "table", **data.read_recipe("tables")["tables"][name]}
    if table.get("by_accuracy"):
        # As in Tables 5 and 6.
        tasks = [
            dataclasses.replace(x, metric="accuracy")
            if (x.kind, x.metric) == (data.CLASSIFICATION, "f1")
            else x
            for x in tasks
        ]
    builder = _Builder(table, plan, tasks, config)
    make = {
        "table2": builder.add_ensembles,
        "table6": builder.add_sizes,
        "figure5": builder.add_curves,
        STABILITY: builder.add_settings,
    }
    if "model_row" in table:
        builder.add_model(table["model_row"], has_average=name == "table1")
    else:
        make.get(name, builder.add_templates)()
    scaled_down = [plan.scale["scaled_down"]]
    if plan.corpus and name not in MODEL_EXPERIMENTS:
        scaled_down.insert(0, plan.scale["scaled_down_pretraining"])
    known = plan.scale.get("table_rows", {}).get(name)
    return builder.table(name, known, " ".join(scaled_down))


class _Builder:
    """Collects the rows, columns and cells of a table.

    Args:
      recipe: The table in tables.json.
      plan: The plan, to which cells are added.
      tasks: The tasks.
      config: The flags.
    """

    def __init__(
        self,
        recipe: Mapping[str, Any],
        plan: Plan,
        tasks: Sequence[Task],
        config: ExperimentsConfig,
    ) -> None:
        self._recipe, self._plan = recipe, plan
        self._tasks, self._config = tasks, config
        self._rows: list[Values] = [dict(x) for x in recipe.get("rows", ())]
        self._columns: list[Values] = []
        self._cells: dict[tuple[str, str], Sequence[str]] = {}
        self._expected: list[list[str]] = []

    def table(
        self, name: str, rows: Sequence[str] | None, scaled_down: str
    ) -> Values:
        """Returns the table with the named rows; None are all."""
        kept = [x for x in self._rows if rows is None or x["name"] in rows]
        cells = [
            [row["name"], column["name"], *self._cell(row, column)]
            for row in kept
            for column in self._columns
        ]
        known = [x[:2] for x in cells]
        words = ("title", "question", "kind")
        shown = ("name", "label", "metric", "higher_is_better", "paper")
        return {
            "name": name,
            **{x: self._recipe[x] for x in words},
            "rows": [{x: row[x] for x in shown[:2]} for row in kept],
            "columns": [{x: each[x] for x in shown} for each in self._columns],
            "reference_row": kept[0]["name"],
            "cells": cells,
            "expected": [x for x in self._expected if x[:2] in known],
            "scaled_down": scaled_down,
        }

    def _cell(self, row: Values, column: Values) -> Sequence[str]:
        """Returns the ids of the cells of a row and a column."""
        key = row["name"], column["name"]
        if key not in self._cells:
            start = column.get("start") or row.get("start")
            start = start or self._plan.start(
                _variant(row.get("variant", "bert")), column.get("step")
            )
            flags = {**row.get("flags", {}), **column.get("flags", {})}
            self._cells[key] = self._plan.finetuning(
                column["task"], start, flags, column.get("num_seeds")
            )
        return self._cells[key]

    def _add_column(
        self,
        task: Task | None,
        name: str = "",
        label: str = "",
        *,
        metric: str = "",
        paper: str = "",
        **others: Any,
    ) -> None:
        """Adds a column; the label may be the end of the task's own."""
        if task and (not label or label.startswith(",")):
            label = f"{task.name} {task.metric.replace('_', ' ')}{label}"
        usual = _PAPER_COLUMNS.get(task.name, task.name) if task else name
        column = {
            "name": name or task.name,
            "label": label,
            "metric": metric or task.metric,
            "higher_is_better": metric != PERPLEXITY,
            "paper": paper or usual,
            "task": task,
        }
        self._columns.append(column | others)

    def add_templates(self) -> None:
        """Adds the columns of tables.json, for each task."""
        starts = [("", "", None)] if self._plan.corpus else []
        if (path := self._config.pretrained_model_dir) and (
            "pretrained_model_dir" in self._recipe.get("sources", ())
        ):
            label = ", pretrained model" if starts else ""
            starts.append(("-model", label, self._plan.stored_model(path)))
        for task, template, (end, label, start) in itertools.product(
            self._tasks, self._recipe["columns"], starts
        ):
            if task.kind not in template.get("kinds", data.KINDS):
                continue
            name = f"{task.name}{template.get('name', '')}{end}"
            self._add_column(
                task,
                name,
                template.get("label", "") + label,
                paper=template.get("paper", ""),
                flags=template.get("flags", {}),
                start=start,
            )
            for row, *claim in template.get("claims", ()):
                self._expected.append([row, name, *claim])

    def add_sizes(self) -> None:
        """Adds a row for each size, and a column with perplexities."""
        sizes, name = [*self._plan.scale["sizes"]], "perplexity"
        label = "Masked-LM perplexity"
        self._add_column(None, name, label, metric=PERPLEXITY)
        # All other sizes are compared with the largest one.
        for size in reversed(sizes):
            variant = "bert"
            if size != self._plan.scale["base"]:
                own = {"name": f"bert_{size}", "size": size}
                variant = _variant("bert") | own
            label = "L={}, H={}, A={}".format(*size.split("_"))
            row = {"name": size, "label": label, "variant": variant}
            self._rows.append(row)
            cell = self._plan.perplexity(_variant(variant))
            self._cells[size, name] = [cell]
        for task in self._tasks:
            self._add_column(task)
        # Above the largest size's, and above the next one's.
        pairs = itertools.pairwise(sizes[:-1])
        self._expected += [[x, name, "above"] for x in sizes[:-1]]
        self._expected += [[x, name, "above", y] for x, y in pairs]

    def add_curves(self) -> None:
        """Adds a column for each number of steps."""
        (task,) = self._tasks
        self._recipe["title"] += f" ({task.name})"
        for step in self._plan.scale["curve_steps"]:
            label = f"{step:,} steps, {task.name} {task.metric}"
            name = f"step_{step}"
            self._add_column(task, name, label, paper=name, step=step)
        self._expected.append(["left_to_right", name, "below"])

    def add_settings(self) -> None:
        """Fills in the scale's settings, and adds columns of small tasks."""
        settings, start = self._plan.scale[STABILITY], None
        if not self._plan.corpus:
            path = self._config.pretrained_model_dir
            start = self._plan.stored_model(path)
        for row in self._rows:
            own = {x: y for x, y in row["settings"].items() if y in settings}
            own = {flag: settings[key] for flag, key in own.items()}
            row["label"] = row["label"].format(**settings)
            row |= {"flags": {**own, **row.get("flags", {})}, "start": start}
        own = None if self._config.num_seeds else settings.get("num_seeds")
        # A task may have fewer rows than several limits.
        tasks = {f"{x.name}-{x.num_train}": x for x in self._tasks[::-1]}
        for name, task in reversed(tasks.items()):
            label, paper = f", {task.num_train} rows", "none"
            self._add_column(task, name, label, paper=paper, num_seeds=own)

    def add_model(self, name: str, has_average: bool) -> None:
        """Adds the rows of a model, and a column for each task."""
        path = self._config.pretrained_model_dir
        for row, label, start in (
            (name, "The pretrained model", self._plan.stored_model(path)),
            ("new", "The same without pretraining", self._plan.untrained(path)),
        ):
            if start is not None:
                values = {"name": row, "label": label, "start": start}
                self._rows.append(values)
        for task in self._tasks:
            paper = _DEV_COLUMNS.get(task.name, "")
            self._add_column(task, paper=paper)
            if task.flags.get("task_name") != "mnli":
                continue
            label = f"{task.name} {task.metric}, mismatched"
            self._add_column(None, "mnli_mm", label, metric=task.metric)
            for row in self._rows:
                ids = self._cell(row, self._columns[-2])
                ids = self._plan.other_metric(
                    ids, task.metric, "dev_mismatched"
                )
                self._cells[row["name"], "mnli_mm"] = ids
        if not has_average or len(self._tasks) < 2:
            return
        for row in self._rows:
            groups = [self._cell(row, column) for column in self._columns]
            mean = self._plan.mean(f"average-{row['start'].name}", groups)
            self._cells[row["name"], "average"] = mean
        self._add_column(None, "average", "Average", metric="average")

    def add_ensembles(self) -> None:
        """Adds the rows of Table 2: systems, ensembles and TriviaQA."""
        plan, (task,) = self._plan, self._tasks
        start = plan.stored_model(self._config.pretrained_model_dir)
        size = plan.scale["ensemble_size"]
        kinds: list[tuple[str, str, Values]] = [("", "", {})]
        if found := _find_triviaqa(self._config.data_dir):
            flags = {
                "triviaqa_file": plan.place("triviaqa", found[0]),
                "triviaqa_evidence_dir": plan.place("evidence", found[1]),
            }
            kinds.append(("_triviaqa", ", TriviaQA first", flags))
        for end, words, flags in kinds:
            count = max(size, plan.num_seeds)
            systems = plan.finetuning(task, start, flags, count)
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
            self._add_column(None, name, label, metric=metric, paper=paper)
        self._expected.append(["bert_large_ensemble", "f1", "above"])


def _variant(variant: str | Values) -> Values:
    """Returns a way to pretrain by its name in tables.json."""
    if not isinstance(variant, str):
        return variant
    return {"name": variant, **data.read_recipe("tables")["variants"][variant]}


def _find_triviaqa(data_dir: str | None) -> tuple[str, str] | None:
    """Returns TriviaQA's questions and evidence, if --data_dir has both."""
    folder = os.path.join(data_dir or "", "triviaqa")
    evidence = os.path.join(folder, "evidence", "wikipedia")
    for name in ("qa/wikipedia-train.json", "wikipedia-train.json"):
        path = os.path.join(folder, name)
        if data_dir and os.path.isfile(path) and os.path.isdir(evidence):
            return path, evidence
    return None


# === What each experiment needs ===


def choose_tasks(
    config: ExperimentsConfig, scale: Values, found: Mapping[str, Task]
) -> dict[str, list[Task]]:
    """Returns the tasks of each experiment in --experiments.

    Raises:
      UserError: If an experiment lacks the corpus, the model or a task.
    """
    unknown = [x for x in config.task_names if x not in found]
    if unknown:
        raise UserError(
            f"--tasks={','.join(unknown)}: --data_dir={config.data_dir} must "
            f"have {'; '.join(map(data.expected_files, unknown))}. Found: "
            f"{', '.join(found) or 'no task'}."
        )
    chosen, missing = {}, []
    for name in config.names:
        table, lacking = data.read_recipe("tables")["tables"][name], []
        sources = table.get("sources", ["corpus"])
        if not any(getattr(config, x) for x in sources):
            lacking.append(" or ".join(f"--{x}" for x in sources))
        kinds = table.get("kinds", [*data.KINDS])
        tasks = [found[x] for x in config.task_names if found[x].kind in kinds]
        if config.task_names and not tasks:
            lacking.append(f"a task of {' or '.join(kinds)} in --tasks")
        for words in [] if config.task_names else scale["tasks"][name]:
            names = words.split("|")
            if task := _first(names, kinds, found):
                tasks.append(task)
            else:
                named = [x for x in names if not x.startswith("*")]
                files = " or ".join(map(data.expected_files, named))
                wanted = f"the task {' or '.join(named)} ({files})"
                if len(named) < len(names):
                    wanted = f"a task of {' or '.join(kinds)}"
                lacking.append(f"{wanted} in --data_dir")
        if lacking:
            missing.append(f"{name} needs {' and '.join(lacking)}")
        tasks = [*{x.name: x for x in tasks}.values()]
        chosen[name] = tasks[:1] if table.get("one_task") else tasks
    if missing:
        raise UserError(
            f"{'; '.join(missing)}. --list prints what each experiment needs."
        )
    return chosen


def _first(
    names: Sequence[str], kinds: Sequence[str], found: Mapping[str, Task]
) -> Task | None:
    """Returns the first task among names and *KINDs that exists."""
    for name in names:
        for task in found.values():
            is_kind = f"*{task.kind}" == name and task.kind in kinds
            if task.name == name or is_kind:
                return task
    return None


def describe(
    scale: Values, found: Mapping[str, Task], config: ExperimentsConfig
) -> str:
    """Returns the text of --list."""
    lines = [f"Experiments, with their tasks at --scale={config.scale}:"]
    wanted = set()
    for name in EXPERIMENTS:
        table = data.read_recipe("tables")["tables"][name]
        needs = " or --".join(table.get("sources", ["corpus"]))
        tasks = ", ".join(scale["tasks"][name])
        wanted |= {*tasks.replace("|", ", ").split(", ")}
        tasks = tasks.replace("|", " or ").replace("*", "any ")
        lines.append(f"  {name:<10} {table['summary']}")
        lines.append(f"             needs --{needs}; tasks: {tasks}")
    state = "found" if _find_triviaqa(config.data_dir) else "not found"
    lines.append(
        "table2 also reads triviaqa/ with wikipedia-train.json or "
        f"qa/wikipedia-train.json, and evidence/wikipedia/: {state}"
    )
    lines.append("\nTasks found in --data_dir:" + "\n  none" * (not found))
    for task in found.values():
        lines.append(f"  {task.name:<12} {task.kind}, {task.metric}")
        shown = dict(task.files)
        if not any(x.startswith("dev") for x in shown):
            shown["dev"] = "a part of train"
        lines += [f"               {x:<15} {y}" for x, y in shown.items()]
    wanted = sorted(x for x in wanted - {*found} if not x.startswith("*"))
    lines += ["\nNot found:"] * bool(wanted)
    lines += [f"  {x:<12} {data.expected_files(x)}" for x in wanted]
    lines.append(
        "\nAny other folder of --data_dir is a task if it has a task.json: "
        '{"kind": "classification", "train": "train.tsv", "dev": "dev.tsv", '
        '"columns": {"text": "sentence", "label": "label"}, "metric": '
        f'"accuracy"}}. Kinds: {", ".join(data.KINDS)}.'
    )
    return "\n".join(lines) + "\n"
