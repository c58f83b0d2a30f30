"""The tables and figures of the paper: their rows, columns and cells."""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from bert_tf.experiments import task_folders as kinds
from bert_tf.experiments.plan import PERPLEXITY
from bert_tf.experiments.plan import Plan
from bert_tf.experiments.plan import Start
from bert_tf.experiments.plan import Variant
from bert_tf.experiments.table import Column
from bert_tf.experiments.table import Row
from bert_tf.experiments.table import Table
from bert_tf.experiments.task_data import TaskData

Cells = dict[tuple[str, str], tuple[str, ...]]

BERT = Variant("bert")
NO_NSP = Variant("no_nsp", next_sentence=False)
LEFT_TO_RIGHT = Variant("ltr_no_nsp", next_sentence=False, left_to_right=True)

# The paper's columns for tasks with other names.
_PAPER_COLUMNS = {"sst-2": "sst2", "sts-b": "stsb"}
# Layers in the order of Table 7.
_LAYERS = {
    "embeddings": ("Embeddings", "embeddings"),
    "second_to_last": ("Second-to-last hidden", "second_to_last_hidden"),
    "last": ("Last hidden", "last_hidden"),
    "weighted_sum_last_four": (
        "Weighted sum of the last four",
        "weighted_sum_last_four_hidden",
    ),
    "concat_last_four": (
        "Concatenation of the last four",
        "concat_last_four_hidden",
    ),
    "weighted_sum_all": (
        "Weighted sum of all layers",
        "weighted_sum_all_layers",
    ),
}
_RATES = (
    (80, 10, 10),
    (100, 0, 0),
    (80, 0, 20),
    (80, 20, 0),
    (0, 20, 80),
    (0, 0, 100),
)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What tables are built from.

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


def build(name: str, inputs: Inputs) -> Table:
    """Returns an experiment's table and adds its cells to the plan."""
    return _BUILDERS[name](inputs)


def _column(task: TaskData, paper: str = "", suffix: str = "") -> Column:
    label = f"{task.name} {task.metric.replace('_', ' ')}{suffix}"
    paper = paper or _PAPER_COLUMNS.get(task.name, task.name)
    return Column(task.name, label, task.metric, paper=paper)


def _kept(inputs: Inputs, name: str, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Returns the rows that the scale has of a table."""
    names = inputs.plan.scale.table_rows.get(name)
    return tuple(x for x in rows if names is None or x.name in names)


def _table(
    inputs: Inputs,
    name: str,
    title: str,
    question: str,
    rows: Sequence[Row],
    columns: Sequence[Column],
    cells: Cells,
    *,
    kind: str = "table",
    expected: Sequence[tuple[str, str, str]] = (),
) -> Table:
    known = {(x.name, y.name) for x in rows for y in columns}
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
        inputs.plan.scale.scaled_down,
    )


# === Tables 5 to 8 and Figure 5: own models ===


def _table5(inputs: Inputs) -> Table:
    plan = inputs.plan
    all_rows = {
        "bert": (Row("bert", "BERT"), BERT, {}),
        "no_nsp": (Row("no_nsp", "No NSP"), NO_NSP, {}),
        "ltr_no_nsp": (
            Row("ltr_no_nsp", "Left-to-right & no NSP"),
            LEFT_TO_RIGHT,
            {},
        ),
        "ltr_bilstm": (
            Row("ltr_bilstm", "  + BiLSTM"),
            LEFT_TO_RIGHT,
            {"head": "bilstm"},
        ),
    }
    rows = _kept(inputs, "table5", [row for row, _, _ in all_rows.values()])
    cells: Cells = {}
    for row in rows:
        _, variant, flags = all_rows[row.name]
        for task in inputs.tasks:
            own = dict(flags)
            if own and task.kind == kinds.TAGGING:
                own |= _lstm(plan)
            cells[row.name, task.name] = plan.finetuning(
                task, plan.start(variant), **own
            )
    tokens = (kinds.SQUAD, kinds.SQUAD2, kinds.TAGGING)
    return _table(
        inputs,
        "table5",
        "Table 5: pretraining tasks",
        "What do next-sentence prediction and looking at both sides add?",
        rows,
        [_column(task) for task in inputs.tasks],
        cells,
        expected=[
            ("ltr_no_nsp", task.name, "below")
            for task in inputs.tasks
            if task.kind in tokens
        ],
    )


def _lstm(plan: Plan) -> dict[str, int]:
    flags = plan.scale.flags("feature_based")
    return {x: y for x, y in flags.items() if x == "lstm_size"}


def _table6(inputs: Inputs) -> Table:
    plan = inputs.plan
    sizes = [*plan.scale.sizes]
    # All other sizes are compared with the largest one.
    rows = [Row(x, _size_label(x)) for x in reversed(sizes)]
    perplexity = Column(
        "perplexity", "Masked-LM perplexity", PERPLEXITY, False
    )
    cells: Cells = {}
    for size in sizes:
        is_base = size == plan.scale.base
        variant = BERT if is_base else Variant(f"bert_{size}", size)
        cells[size, "perplexity"] = (plan.perplexity(variant),)
        for task in inputs.tasks:
            start = plan.start(variant)
            cells[size, task.name] = plan.finetuning(task, start)
    return _table(
        inputs,
        "table6",
        "Table 6: model size",
        "Does a larger model fit held-out text and small tasks better?",
        rows,
        [perplexity, *map(_column, inputs.tasks)],
        cells,
        expected=[(x, "perplexity", "above") for x in sizes[:-1]],
    )


def _size_label(size: str) -> str:
    layers, width, heads = size.split("_")
    return f"L={layers}, H={width}, A={heads}"


def _table7(inputs: Inputs) -> Table:
    plan = inputs.plan
    rows = [Row("fine_tuning", "Fine-tuning")]
    rows += [Row(name, label) for name, (label, _) in _LAYERS.items()]
    rows = _kept(inputs, "table7", rows)
    starts = [("", "", plan.start(BERT))] if plan.corpus else []
    if inputs.model:
        suffix = ", pretrained model" if starts else ""
        model = plan.stored_model(inputs.model)
        starts.append(("-model", suffix, model))
    columns, cells = [], {}
    for task in inputs.tasks:
        for end, suffix, start in starts:
            column = _column(task, "ner", suffix)
            column = dataclasses.replace(column, name=task.name + end)
            columns.append(column)
            for row in rows:
                own = {}
                if row.name in _LAYERS:
                    _, layers = _LAYERS[row.name]
                    own = {
                        "approach": "feature_based",
                        "layer_combination": layers,
                    }
                cells[row.name, column.name] = plan.finetuning(
                    task, start, **own
                )
    return _table(
        inputs,
        "table7",
        "Table 7: features from a frozen encoder",
        "Which layers serve as features, and how close is that to "
        "fine-tuning?",
        rows,
        columns,
        cells,
        expected=[("embeddings", x.name, "below") for x in columns],
    )


def _table8(inputs: Inputs) -> Table:
    plan = inputs.plan
    rows, variants = [], {}
    for rates in _RATES:
        name = "_".join(map(str, rates))
        labels = ("MASK", "same", "random")
        parts = zip(rates, labels, strict=True)
        label = ", ".join(f"{rate}% {what}" for rate, what in parts)
        rows.append(Row(name, label))
        shares = tuple(rate / 100 for rate in rates)
        variants[name] = Variant(f"masks_{name}", rates=shares)
    variants["80_10_10"] = BERT
    rows = _kept(inputs, "table8", rows)
    columns, cells, expected = [], {}, []
    for task in inputs.tasks:
        is_tagger = task.kind == kinds.TAGGING
        paper = "ner" if is_tagger else "mnli"
        columns.append(_column(task, paper, ", fine-tuned"))
        if is_tagger:
            column = _column(task, "ner_feature", ", feature-based")
            name = f"{task.name}-feature"
            columns.append(dataclasses.replace(column, name=name))
            expected.append(("0_0_100", name, "below"))
        for row in rows:
            start = plan.start(variants[row.name])
            cells[row.name, task.name] = plan.finetuning(task, start)
            if is_tagger:
                cells[row.name, f"{task.name}-feature"] = plan.finetuning(
                    task,
                    start,
                    approach="feature_based",
                    layer_combination="concat_last_four_hidden",
                )
    return _table(
        inputs,
        "table8",
        "Table 8: masking rates",
        "Does it matter what replaces the tokens to predict?",
        rows,
        columns,
        cells,
        expected=expected,
    )


def _figure5(inputs: Inputs) -> Table:
    plan = inputs.plan
    task = inputs.tasks[0]
    rows = [
        Row("masked_lm", "BERT (masked LM)"),
        Row("left_to_right", "Left-to-right"),
    ]
    variants = {"masked_lm": BERT, "left_to_right": LEFT_TO_RIGHT}
    columns, cells = [], {}
    for step in plan.scale.curve_steps:
        name = f"step_{step}"
        label = f"{step:,} steps, {task.name} {task.metric}"
        columns.append(Column(name, label, task.metric))
        for row, variant in variants.items():
            start = plan.start_at(variant, step)
            cells[row, name] = plan.finetuning(task, start)
    return _table(
        inputs,
        "figure5",
        f"Figure 5: steps of pretraining ({task.name})",
        "Does a masked LM learn more slowly than a left-to-right one?",
        rows,
        columns,
        cells,
        kind="curve",
        expected=[("left_to_right", columns[-1].name, "below")],
    )


# === Stability of fine-tuning ===


def _stability(inputs: Inputs) -> Table:
    plan = inputs.plan
    start = (
        plan.stored_model(inputs.model) if inputs.model else plan.start(BERT)
    )
    settings = plan.scale.stability
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
                own = {"optimizer": optimizer, "num_train_epochs": epochs}
                if layers == "reinitialized":
                    own["reinit_layers"] = settings["reinit_layers"]
                flags[name] = own
    rows = _kept(inputs, "stability", rows)
    columns, cells = [], {}
    for task in inputs.small_tasks:
        name = f"{task.name}-{task.num_train}"
        column = _column(task, "none", f", {task.num_train} rows")
        columns.append(dataclasses.replace(column, name=name))
        for row in rows:
            own = flags[row.name]
            cells[row.name, name] = plan.finetuning(task, start, **own)
    return _table(
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


def _plain(
    name: str, title: str, question: str, row: str, inputs: Inputs
) -> Table:
    """Returns a table of a pretrained model on each task, and new weights."""
    plan = inputs.plan
    rows, columns, cells = [], [], {}
    names = {"mnli": "mnli_m", "swag": "dev", "squad2": "dev_f1"}
    for task in inputs.tasks:
        columns.append(_column(task, names.get(task.name, "")))
    for each, start in _model_rows(inputs, row, plan):
        rows.append(each)
        found = [plan.finetuning(task, start) for task in inputs.tasks]
        for task, ids in zip(inputs.tasks, found, strict=True):
            cells[each.name, task.name] = ids
        if name == "table1" and len(found) > 1:
            cells[each.name, "average"] = plan.mean(
                f"average-{start.name}", found
            )
    if name == "table1" and len(inputs.tasks) > 1:
        columns.append(Column("average", "Average", "average"))
    return _table(
        inputs,
        name,
        title,
        question,
        rows,
        columns,
        cells,
        expected=[("new", x.name, "below") for x in columns],
    )


def _table2(inputs: Inputs) -> Table:
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
    return _table(
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


_BUILDERS: dict[str, Callable[[Inputs], Table]] = {
    "table5": _table5,
    "table6": _table6,
    "table7": _table7,
    "table8": _table8,
    "figure5": _figure5,
    "stability": _stability,
    "table1": functools.partial(
        _plain,
        "table1",
        "Table 1: GLUE",
        "How does the model do on each task of GLUE?",
        "bert_base",
    ),
    "table2": _table2,
    "table3": functools.partial(
        _plain,
        "table3",
        "Table 3: SQuAD 2.0",
        "How does the model do where some questions have no answer?",
        "bert_large",
    ),
    "table4": functools.partial(
        _plain,
        "table4",
        "Table 4: SWAG",
        "How does the model choose the continuation of a sentence?",
        "bert_large",
    ),
}
