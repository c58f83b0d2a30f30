"""The paper's tables and figures, and the steps that make their cells.

Steps run in the order vocabulary -> records -> pretraining -> cells. A step's
id has a hash of everything that the step's result depends on. So a step that
several tables need runs once, and a later command skips finished steps.

`build` makes tables from recipes/experiments/tables.json. Keys of a table:
  kind: "curve" if the columns are numbers of steps, "spread" if the cells show
    how far seeds differ, else "table".
  cells: A list of [row, column, cell id per seed...].
  expected: The paper's claims as [row, column, "below" or "above", other row].
    A claim without another row compares the row with `reference_row`.
"""

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from bert_tf.errors import UserError
from bert_tf.experiments import EXPERIMENTS
from bert_tf.experiments import MODEL_EXPERIMENTS
from bert_tf.experiments import data
from bert_tf.experiments.data import OUT
from bert_tf.experiments.data import Task
from bert_tf.flags import flag_files
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import text_files

# In a step's flags and paths, this placeholder stands for the step's folder.
HERE = "{here}"
CELL = "runs"
PERPLEXITY, AVERAGE = "masked_lm_perplexity", "average"
_FIRST_SEED = 12345

# A script, such as "run/pretrain.py", and its flags.
Command = tuple[str, Mapping[str, Any]]
Values = dict[str, Any]
# A variant of the model: its entry in tables.json, its `name`, and its `size`
# unless that is the base size of the scale.
Variant = Values


@dataclasses.dataclass(frozen=True)
class Score:
    """How to read a cell's score from the results of its command.

    Attributes:
      metric: The metric's name.
      split: Prefix of the split's name in `path`, such as dev for dev_matched.
      factor: Multiplies the score; 100 turns a score from 0 to 1 into percent.
      seed: The seed of the run.
      majority: The score of always predicting the most frequent label, or None.
      path: The file with the results.
    """

    metric: str
    split: str = ""
    factor: float = 1.0
    seed: int = _FIRST_SEED
    majority: float | None = None
    path: str = f"{HERE}/eval_results.json"


@dataclasses.dataclass(frozen=True)
class Step:
    """Commands that make a vocabulary, records, a model or a cell, once.

    Attributes:
      id: A name with a hash of all that the result depends on.
      kind: The subfolder of --output_dir, such as "records"; `CELL` for a cell.
      commands: The commands, in order; empty if `score` reads the results of
        another step.
      needs: The ids of the steps to run first.
      score: Describes the score of a cell; None for other steps.
    """

    id: str
    kind: str
    commands: tuple[Command, ...]
    needs: tuple[str, ...]
    score: Score | None = None

    @property
    def here(self) -> str:
        """The folder of the step's output; begins with `OUT`."""
        return f"{OUT}/{self.kind}/{self.id}"


class Start(NamedTuple):
    """A model that fine-tuning starts from, and the steps that make it."""

    name: str
    flags: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    has_pooler: bool = True


class Plan:
    """The steps of all experiments; each step comes after the steps it needs.

    Args:
      scale: The contents of a file in recipes/experiments/scales/.
      folder: The folder for the input files of commands.
      corpus: The corpus's folder name in data/; None if nothing is pretrained.
    """

    def __init__(self, scale: Values, folder: str, corpus: str | None) -> None:
        self.scale = scale
        self.corpus = corpus
        self.steps: dict[str, Step] = {}
        # Maps the placeholders of `place` to paths outside --output_dir.
        self.places: dict[str, str] = {}
        self._folder = folder

    @property
    def cells(self) -> list[str]:
        """The ids of the cells, in order."""
        return [x.id for x in self.steps.values() if x.kind == CELL]

    def _vocabulary(self) -> Step:
        source = f"{OUT}/data/{self.corpus}/{data.TRAIN}.txt"
        flags = {"input_file": source, "output_file": f"{HERE}/vocab.txt"}
        flags |= self.scale["vocabulary"]
        command = ("run/learn_vocabulary.py", flags)
        return self._add("vocabulary", "vocabulary", [command])

    def _records(self, variant: Variant, phase: Values, split: str) -> Step:
        """Returns the step that makes records from one split of the corpus."""
        vocabulary, (name, own) = self._vocabulary(), variant[split]
        flags = {
            "input_file": f"{OUT}/data/{self.corpus}/{split}.txt",
            "output_file": f"{HERE}/records.tfrecord",
            "vocab_file": f"{vocabulary.here}/vocab.txt",
            **phase[split],
            **own,
        }
        if own.get("left_to_right"):  # All tokens are predicted.
            flags["max_predictions_per_seq"] = flags["max_seq_length"]
            flags.pop("masked_lm_prob", None)
        name = f"records-{split}-{name}"
        command = ("run/create_pretraining_data.py", flags)
        return self._add("records", name, [command], [vocabulary.id])

    def _pretraining(self, variant: Variant) -> Step:
        """Returns the step that pretrains a model, in one phase or several."""
        commands, needs = [], [self._vocabulary().id]
        for phase in self.scale["phases"]:
            train = self._records(variant, phase, data.TRAIN)
            held_out = self._records(variant, phase, data.HELD_OUT)
            needs += [train.id, held_out.id]
            ((_, records),) = train.commands
            same = ("vocab_file", "max_seq_length", "max_predictions_per_seq")
            flags = {
                **phase["pretraining"],
                **{x: records[x] for x in same},
                "bert_config_file": self._config_file(variant),
                "input_file": f"{train.here}/*.tfrecord",
                "eval_input_file": f"{held_out.here}/*.tfrecord",
                "output_dir": HERE,
                "do_train": True,
                "do_eval": True,
                **variant.get("pretraining", {}),
            }
            commands.append(("run/pretrain.py", flags))
        name = f"pretraining-{variant['name']}"
        return self._add("pretraining", name, commands, needs)

    def start(self, variant: Variant, step: int | None = None) -> Start:
        """Returns the model at a step of pretraining, by default the last."""
        made, name = self._pretraining(variant), variant["name"]
        flags = {"pretrained_model_dir": f"{made.here}/model"}
        if step not in (None, max(self.scale["curve_steps"])):
            name += f"-{step}"
            flags = {
                "init_checkpoint": f"{made.here}/model.ckpt-{step}",
                "bert_config_file": self._config_file(variant),
                "vocab_file": f"{self._vocabulary().here}/vocab.txt",
            }
        has_pooler = variant.get("pretraining", {}).get("use_next_sentence")
        return Start(name, flags, (made.id,), has_pooler is not False)

    def place(self, name: str, path: str) -> str:
        """Returns a placeholder for a path outside --output_dir.

        The placeholder, such as {model-1a2b3c4d}, has a hash of the contents,
        so that the ids of steps do not depend on the path.
        """
        root = pathlib.Path(path)
        # Folders, pipes and broken links have no contents to hash.
        found = [x for x in (root, *root.rglob("*")) if x.is_file()]
        sums = {str(x.relative_to(root)): files.sha256(str(x)) for x in found}
        # A single file has the key ".". If there is no file, hash the path.
        holder = f"{{{name}-{data.digest(sums.get('.', sums or path))}}}"
        self.places[holder] = os.path.abspath(path) if found else path
        return holder

    def _config_file(self, variant: Variant) -> str:
        """Writes the configuration of a model, and returns its path."""
        own = self.scale["sizes"][variant.get("size", self.scale["base"])]
        if isinstance(own, str):
            folder = os.path.join(paths.RECIPES, "configs", own)
            own = text_files.read_json(os.path.join(folder, "bert_config.json"))
        vocab_size = self.scale["vocabulary"]["vocab_size"]
        config = {**self.scale["model"], **own, "vocab_size": vocab_size}
        config |= variant.get("config", {})
        name = f"data/bert_config-{data.digest(config)}.json"
        path = os.path.join(self._folder, name)
        if not os.path.exists(path):
            data.write_json(path, config)
        return f"{OUT}/{name}"

    def perplexity(self, variant: Variant) -> str:
        """Returns the id of the cell with a model's perplexity."""
        made, name = self._pretraining(variant), f"perplexity-{variant['name']}"
        score = Score(PERPLEXITY, path=f"{made.here}/eval_results.txt")
        return self._add(CELL, name, [], [made.id], score).id

    def finetuning(
        self, task: Task, start: Start, own: Values, num_seeds: int
    ) -> list[str]:
        """Returns a task's cell ids, one per seed; `own` overrides flags."""
        kind, scale = data.KINDS[task.kind], self.scale["finetuning"]
        flags, head = dict(scale[task.kind]), own.get("head", "linear")
        if not start.needs:  # The model of --pretrained_model_dir.
            flags |= self.scale.get("stored_model", {})
        for way in (own.get("approach"), f"{head} {task.kind}"):
            flags |= scale.get(way, {})
        if kind["has_pooler"] and head == "linear" and not start.has_pooler:
            flags["new_pooler"] = True
        flags |= {**start.flags, **task.flags, **own}
        flags |= {"do_train": True, "do_eval": True, "output_dir": HERE}
        how = [x for x in own.values() if isinstance(x, str)]
        # Leave hashes out of cells' names: {model-1a2b3c4d} becomes model.
        how = [x[1:].partition("-")[0] if x in self.places else x for x in how]
        # The scores of a model that always predicts the most frequent label.
        majority = {"matthews_correlation": 0.0, "accuracy": task.majority}
        majority, factor = majority.get(task.metric), kind["factor"]
        found = []
        for seed in range(_FIRST_SEED, _FIRST_SEED + num_seeds):
            score = Score(task.metric, "dev", factor, seed, majority)
            name = "-".join([task.name, start.name, *how, f"seed{seed}"])
            command = (kind["script"], flags | {"seed": seed})
            made = self._add(CELL, name, [command], start.needs, score)
            found.append(made.id)
        return found

    def other_metric(
        self, cells: Sequence[str], metric: str, split: str | None = None
    ) -> list[str]:
        """Returns ids of cells that read another metric of the same results."""
        found = []
        for cell in (self.steps[x] for x in cells):
            own = {"metric": metric, "split": split or cell.score.split}
            own["path"] = cell.score.path.replace(HERE, cell.here)
            score = dataclasses.replace(cell.score, majority=None, **own)
            name = f"{cell.id}-{split or metric}"
            found.append(self._add(CELL, name, [], [cell.id], score).id)
        return found

    def ensemble(self, task: Task, cells: Sequence[str]) -> str:
        """Returns the id of the cell of a SQuAD ensemble."""
        nbest = [f"{self.steps[x].here}/nbest_predictions.json" for x in cells]
        flags = {x: y for x, y in task.flags.items() if x != "train_file"}
        flags["ensemble_nbest_files"] = ",".join(nbest)
        flags |= {"do_predict": True, "output_dir": HERE}
        name = f"{task.name}-ensemble_of_{len(cells)}"
        command = ("run/finetune_squad.py", flags)
        score = Score(task.metric, "dev")
        return self._add(CELL, name, [command], cells, score).id

    def _add(
        self,
        kind: str,
        name: str,
        commands: Sequence[Command],
        needs: Sequence[str] = (),
        score: Score | None = None,
    ) -> Step:
        """Adds a step, unless the plan has an equal one; returns the step."""
        content = [
            [[script, _with_flag_file(flags)] for script, flags in commands],
            list(needs),
            # Keep the unused []: without it, the ids of finished cells change.
            score and [score.metric, score.split, []],
        ]
        step_id = f"{name}-{data.digest(content)}"
        needs = tuple(dict.fromkeys(needs))
        step = Step(step_id, kind, tuple(commands), needs, score)
        return self.steps.setdefault(step_id, step)


def _with_flag_file(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags of the --flagfile, overridden by `flags`."""
    words = flag_files.expand([f"--flagfile={flags.get('flagfile', '')}"])
    parts = [word.removeprefix("--").partition("=") for word in words]
    found = {name: value if sign else True for name, sign, value in parts}
    return {**found, **flags}


# === Tables ===


def build(
    name: str, plan: Plan, tasks: Sequence[Task], config: Flags
) -> Values:
    """Returns an experiment's table and adds its cells to the plan."""
    recipe, scale = data.read_recipe("tables")["tables"][name], plan.scale
    count = config.num_seeds or (scale | scale.get(name, {}))["num_seeds"]
    rows = _rows(name, recipe, plan, config)
    columns, expected = _columns(recipe, plan, tasks, config)
    expected += scale["expected"].get(name, [])
    cells = {
        (row["name"], column["name"]): _cell(plan, row, column, count)
        for row, column in itertools.product(rows, columns)
    }
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


def _rows(name: str, recipe: Values, plan: Plan, config: Flags) -> list[Values]:
    """Returns the rows that the scale and the files in --data_dir allow."""
    found, values = [], plan.scale | plan.scale.get(name, {})
    # Put the largest size first: all rows are compared with the first row.
    sizes = [{"name": x, "size": x} for x in reversed(values["sizes"])]
    for row in recipe.get("rows", sizes):
        label = row.get("label", "L={}, H={}, A={}")
        label = label.format(*row["name"].split("_"), **values)
        settings = row.get("settings", {}).items()
        flags = {x: values[y] for x, y in settings if y in values}
        flags |= row.get("flags", {})
        for flag, place, *names in row.get("places", ()):
            names = (os.path.join(config.data_dir, x) for x in names)
            path = next(filter(os.path.exists, names), None)
            flags[flag] = path and plan.place(place, path)
        known = values.get("table_rows", {}).get(name, [row["name"]])
        if row["name"] in known and None not in flags.values():
            found.append({**row, "label": label, "flags": flags})
    return found


def _columns(
    recipe: Values, plan: Plan, tasks: Sequence[Task], config: Flags
) -> tuple[list[Values], list[list[str]]]:
    """Returns the columns of all tasks, and the paper's claims: `expected`."""
    papers = data.read_recipe("tables")["papers"] | recipe.get("papers", {})
    metrics, path = recipe.get("metrics", {}), config.pretrained_model_dir
    starts = [None] if plan.corpus and "corpus" in recipe["sources"] else []
    if path and "pretrained_model_dir" in recipe["sources"]:
        flags = {"pretrained_model_dir": plan.place("model", path)}
        starts.append(Start("model", flags))
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
        scored = dataclasses.replace(task, metric=metric)
        column |= {"task": scored, "start": start}
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
    if column["metric"] == AVERAGE:
        return []  # The report computes the average from other columns.
    start = column["start"] or plan.start(variant, column["step"])
    flags = row["flags"] | column.get("flags", {})
    systems = scale["ensemble_size"] if row.get("ensemble") else None
    cells = plan.finetuning(task, start, flags, systems or num_seeds)
    if systems:
        cells = [plan.ensemble(task, cells)]
    if "split" in column or column["metric"] != task.metric:
        cells = plan.other_metric(cells, column["metric"], column.get("split"))
    return cells


def choose_tasks(
    config: Flags, scale: Values, found: Mapping[str, Task]
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
        lacking, tasks = [], []
        if not any(getattr(config, x) for x in sources):
            lacking.append(" or ".join(f"--{x}" for x in sources))
        for words in config.task_names or scale["tasks"][name]:
            names = [
                task.name
                for word in words.split("|")
                for task in known.values()
                if word in (task.name, f"*{task.kind}")
            ]
            tasks += names[:1]
            if not names and not config.task_names:
                lacking.append(f"{_readable(words)} in --data_dir")
        if not tasks and config.task_names:
            lacking.append(f"a task of {' or '.join(kinds)} in --tasks")
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


def describe(config: Flags) -> str:
    """Returns the text of --list."""
    scale = data.read_recipe(f"scales/{config.scale}")
    found = data.find_tasks(config.data_dir)
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
