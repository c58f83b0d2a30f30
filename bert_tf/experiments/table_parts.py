"""Parts that the builders of tables share."""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence

from bert_tf.experiments import task_folders as kinds
from bert_tf.experiments.plan import Plan
from bert_tf.experiments.table import Column
from bert_tf.experiments.table import Row
from bert_tf.experiments.table import Table
from bert_tf.experiments.task_data import TaskData
from bert_tf.flags.experiments import MODEL_EXPERIMENTS

Cells = dict[tuple[str, str], tuple[str, ...]]

# The paper's columns for tasks with other names.
_PAPER_COLUMNS = {"sst-2": "sst2", "sts-b": "stsb"}


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Inputs of the tables.

    Attributes:
      plan: The plan, to which cells are added.
      tasks: The tasks of the experiment.
      model: --pretrained_model_dir, or None.
      small_tasks: Tasks with small training sets, for `stability`.
      triviaqa: Flags that name TriviaQA; empty without it.
    """

    plan: Plan
    tasks: Sequence[TaskData]
    model: str | None = None
    small_tasks: Sequence[TaskData] = ()
    triviaqa: Mapping[str, str] = dataclasses.field(default_factory=dict)


def column(task: TaskData, paper: str = "", suffix: str = "") -> Column:
    """Returns the column of a task.

    Args:
      task: The task.
      paper: The paper's column that it stands for, if it has another name.
      suffix: The end of its label.
    """
    label = f"{task.name} {task.metric.replace('_', ' ')}{suffix}"
    paper = paper or _PAPER_COLUMNS.get(task.name, task.name)
    return Column(task.name, label, task.metric, paper=paper)


def by_accuracy(tasks: Sequence[TaskData]) -> list[TaskData]:
    """Returns tasks with accuracy in place of F1, as in Tables 5 and 6."""
    return [
        dataclasses.replace(task, metric="accuracy")
        if task.kind == kinds.CLASSIFICATION and task.metric == "f1"
        else task
        for task in tasks
    ]


def kept(inputs: Inputs, name: str, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Returns the rows that the scale has of a table."""
    names = inputs.plan.scale.table_rows.get(name)
    return tuple(x for x in rows if names is None or x.name in names)


def make_table(
    inputs: Inputs,
    name: str,
    title: str,
    question: str,
    rows: Sequence[Row],
    columns: Sequence[Column],
    cells: Cells,
    *,
    kind: str = "table",
    expected: Sequence[tuple[str, ...]] = (),
) -> Table:
    """Returns a table whose first row is the reference.

    Cells and expected signs of rows that it does not have are left out.
    """
    known = {(x.name, y.name) for x in rows for y in columns}
    scaled_down = [inputs.plan.scale.scaled_down]
    if inputs.plan.corpus and name not in MODEL_EXPERIMENTS:
        scaled_down.insert(0, inputs.plan.scale.scaled_down_pretraining)
    return Table(
        name,
        title,
        question,
        kind,
        tuple(rows),
        tuple(columns),
        rows[0].name,
        {key: cells[key] for key in cells if key in known},
        tuple(x for x in expected if x[:2] in known),
        " ".join(scaled_down),
    )
