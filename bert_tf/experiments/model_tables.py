"""Tables about one pretrained model: stability, and Tables 1 to 4."""

import dataclasses

from bert_tf.experiments import table_parts
from bert_tf.experiments.plan import Plan
from bert_tf.experiments.starts import Start
from bert_tf.experiments.starts import Variant
from bert_tf.experiments.table import Column
from bert_tf.experiments.table import Row
from bert_tf.experiments.table import Table
from bert_tf.experiments.table_parts import Inputs
from bert_tf.experiments.task_data import TaskData

BERT = Variant("bert")


# === Stability of fine-tuning ===


def stability(inputs: Inputs) -> Table:
    """Returns the table of settings on small training sets."""
    plan = inputs.plan
    start = plan.start(BERT) if plan.corpus else plan.stored_model(inputs.model)
    settings = plan.scale.stability
    num_seeds = None if plan.has_own_seeds else settings.get("num_seeds")
    rows, flags = [], {}
    for optimizer, optimizer_label in (
        ("bert_adam", "original optimizer"),
        ("adamw", "bias-corrected AdamW"),
    ):
        for length, epochs in zip(
            ("short", "long"), settings["epochs"], strict=True
        ):
            for layers in ("pretrained", "reinitialized"):
                name = f"{optimizer}_{length}_{layers}"
                top = (
                    "as pretrained"
                    if layers == "pretrained"
                    else "re-initialized"
                )
                label = f"{optimizer_label}, {epochs} epochs, {top}"
                rows.append(Row(name, label))
                own = {"num_train_epochs": epochs}
                if "learning_rate" in settings:
                    own["learning_rate"] = settings["learning_rate"]
                if optimizer != "bert_adam":  # The default.
                    own["optimizer"] = optimizer
                if layers == "reinitialized":
                    own["reinit_layers"] = settings["reinit_layers"]
                flags[name] = own
    rows = table_parts.kept(inputs, "stability", rows)
    columns, cells = [], {}
    for task in table_parts.by_accuracy(inputs.small_tasks):
        name = f"{task.name}-{task.num_train}"
        if name in [x.name for x in columns]:
            continue  # It has fewer rows than several limits.
        column = table_parts.column(task, "none", f", {task.num_train} rows")
        columns.append(dataclasses.replace(column, name=name))
        for row in rows:
            own = flags[row.name]
            cells[row.name, name] = plan.finetuning(
                task, start, num_seeds=num_seeds, **own
            )
    return table_parts.make_table(
        inputs,
        "stability",
        "Stability of fine-tuning on small training sets",
        "Which settings make runs with another seed fail less often?",
        rows,
        columns,
        cells,
        kind="spread",
    )


# === Tables 1 to 4: a pretrained model ===


def _model_rows(
    inputs: Inputs, row: str, plan: Plan
) -> list[tuple[Row, Start]]:
    """Returns the rows of a pretrained model, and of new weights."""
    model = plan.stored_model(inputs.model)
    found = [(Row(row, "The pretrained model"), model)]
    new = plan.untrained(inputs.model)
    if new is not None:
        found.append((Row("new", "The same without pretraining"), new))
    return found


def _has_mismatched(task: TaskData) -> bool:
    """Returns True for MNLI with its two official dev files."""
    return task.flags.get("task_name") == "mnli"


def plain(
    name: str, title: str, question: str, row: str, inputs: Inputs
) -> Table:
    """Returns a table of a pretrained model on each task, and new weights."""
    plan = inputs.plan
    rows, columns, cells = [], [], {}
    names = {"mnli": "mnli_m", "swag": "dev", "squad2": "dev_f1"}
    has_average = name == "table1" and len(inputs.tasks) > 1
    for task in inputs.tasks:
        columns.append(table_parts.column(task, names.get(task.name, "")))
        if _has_mismatched(task):
            label = f"{task.name} {task.metric}, mismatched"
            columns.append(Column("mnli_mm", label, task.metric))
    for each, start in _model_rows(inputs, row, plan):
        rows.append(each)
        found = {}
        for task in inputs.tasks:
            ids = plan.finetuning(task, start)
            found[each.name, task.name] = ids
            if _has_mismatched(task):
                ids = plan.other_metric(ids, task.metric, "dev_mismatched")
                found[each.name, "mnli_mm"] = ids
        cells |= found
        if has_average:
            cells[each.name, "average"] = plan.mean(
                f"average-{start.name}", [*found.values()]
            )
    if has_average:
        columns.append(Column("average", "Average", "average"))
    return table_parts.make_table(
        inputs,
        name,
        title,
        question,
        rows,
        columns,
        cells,
    )


def table2(inputs: Inputs) -> Table:
    """Returns Table 2: systems, ensembles and TriviaQA on SQuAD 1.1."""
    plan, task = inputs.plan, inputs.tasks[0]
    start = plan.stored_model(inputs.model)
    size = plan.scale.ensemble_size
    count = max(size, plan.num_seeds)
    rows, cells = [], {}

    def add(name: str, label: str, ids: tuple[str, ...]) -> None:
        rows.append(Row(name, label))
        cells[name, "f1"] = ids
        cells[name, "em"] = plan.other_metric(ids, "exact_match")

    for end, words, flags in (
        ("", "", {}),
        ("_triviaqa", ", TriviaQA first", inputs.triviaqa),
    ):
        if end and not flags:
            continue
        systems = plan.finetuning(task, start, num_seeds=count, **flags)
        singles = systems[: plan.num_seeds]
        add(f"bert_large{end}", f"One system{words}", singles)
        add(
            f"bert_large_ensemble{end}",
            f"Ensemble of {size}{words}",
            plan.ensemble(task, systems[:size]),
        )
    return table_parts.make_table(
        inputs,
        "table2",
        "Table 2: SQuAD 1.1",
        "What do an ensemble, and TriviaQA before SQuAD, add?",
        rows,
        [
            Column("em", f"{task.name} EM", "exact_match", paper="dev_em"),
            Column("f1", f"{task.name} F1", "f1", paper="dev_f1"),
        ],
        cells,
        expected=[("bert_large_ensemble", "f1", "above")],
    )
