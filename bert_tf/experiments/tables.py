"""The tables and figures of the paper: their rows, columns and cells."""

import dataclasses
import functools
import itertools
from collections.abc import Callable

from bert_tf.experiments import model_tables
from bert_tf.experiments import table_parts
from bert_tf.experiments import task_folders as kinds
from bert_tf.experiments.model_tables import BERT
from bert_tf.experiments.plan import PERPLEXITY
from bert_tf.experiments.plan import Plan
from bert_tf.experiments.starts import Variant
from bert_tf.experiments.table import Column
from bert_tf.experiments.table import Row
from bert_tf.experiments.table import Table
from bert_tf.experiments.table_parts import Cells
from bert_tf.experiments.table_parts import Inputs

NO_NSP = Variant("no_nsp", next_sentence=False)
LEFT_TO_RIGHT = Variant("ltr_no_nsp", next_sentence=False, left_to_right=True)

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


def build(name: str, inputs: Inputs) -> Table:
    """Returns an experiment's table and adds its cells to the plan."""
    return _BUILDERS[name](inputs)


# === Tables 5 to 8 and Figure 5: own models ===


def _table5(inputs: Inputs) -> Table:
    plan, tasks = inputs.plan, table_parts.by_accuracy(inputs.tasks)
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
    rows = table_parts.kept(
        inputs, "table5", [row for row, _, _ in all_rows.values()]
    )
    cells: Cells = {}
    for row in rows:
        _, variant, flags = all_rows[row.name]
        for task in tasks:
            own = dict(flags)
            if own and task.kind == kinds.TAGGING:
                own |= _lstm(plan)
            cells[row.name, task.name] = plan.finetuning(
                task, plan.start(variant), **own
            )
    tokens = (kinds.SQUAD, kinds.SQUAD2, kinds.TAGGING)
    return table_parts.make_table(
        inputs,
        "table5",
        "Table 5: pretraining tasks",
        "What do next-sentence prediction and looking at both sides add?",
        rows,
        [table_parts.column(task) for task in tasks],
        cells,
        expected=[
            sign
            for task in tasks
            if task.kind in tokens
            for sign in (
                ("ltr_no_nsp", task.name, "below"),
                # The BiLSTM recovers a part of the loss.
                ("ltr_bilstm", task.name, "above", "ltr_no_nsp"),
            )
        ],
    )


def _lstm(plan: Plan) -> dict[str, int]:
    flags = plan.scale.flags("feature_based")
    return {x: y for x, y in flags.items() if x == "lstm_size"}


def _table6(inputs: Inputs) -> Table:
    plan, tasks = inputs.plan, table_parts.by_accuracy(inputs.tasks)
    sizes = [*plan.scale.sizes]
    # All other sizes are compared with the largest one.
    rows = [Row(x, _size_label(x)) for x in reversed(sizes)]
    perplexity = Column("perplexity", "Masked-LM perplexity", PERPLEXITY, False)
    cells: Cells = {}
    for size in sizes:
        is_base = size == plan.scale.base
        variant = BERT if is_base else Variant(f"bert_{size}", size)
        cells[size, "perplexity"] = (plan.perplexity(variant),)
        for task in tasks:
            start = plan.start(variant)
            cells[size, task.name] = plan.finetuning(task, start)
    return table_parts.make_table(
        inputs,
        "table6",
        "Table 6: model size",
        "Does a larger model fit held-out text and small tasks better?",
        rows,
        [perplexity, *map(table_parts.column, tasks)],
        cells,
        # Above the largest size's, and above the next one's.
        expected=[
            *((x, "perplexity", "above") for x in sizes[:-1]),
            *(
                (x, "perplexity", "above", y)
                for x, y in itertools.pairwise(sizes[:-1])
            ),
        ],
    )


def _size_label(size: str) -> str:
    layers, width, heads = size.split("_")
    return f"L={layers}, H={width}, A={heads}"


def _table7(inputs: Inputs) -> Table:
    plan = inputs.plan
    rows = [Row("fine_tuning", "Fine-tuning")]
    rows += [Row(name, label) for name, (label, _) in _LAYERS.items()]
    rows = table_parts.kept(inputs, "table7", rows)
    starts = [("", "", plan.start(BERT))] if plan.corpus else []
    if inputs.model:
        suffix = ", pretrained model" if starts else ""
        model = plan.stored_model(inputs.model)
        starts.append(("-model", suffix, model))
    columns, cells = [], {}
    for task in inputs.tasks:
        for end, suffix, start in starts:
            column = table_parts.column(task, "ner", suffix)
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
    return table_parts.make_table(
        inputs,
        "table7",
        "Table 7: features from a frozen encoder",
        "Which layers serve as features, and how close is that to fine-tuning?",
        rows,
        columns,
        cells,
        expected=[
            # Below all other rows.
            ("embeddings", column.name, "below", row.name)
            for column in columns
            for row in rows
            if row.name != "embeddings"
        ],
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
    rows = table_parts.kept(inputs, "table8", rows)
    columns, cells, expected = [], {}, []
    for task in inputs.tasks:
        is_tagger = task.kind == kinds.TAGGING
        paper = "ner" if is_tagger else "mnli"
        columns.append(table_parts.column(task, paper, ", fine-tuned"))
        if is_tagger:
            column = table_parts.column(task, "ner_feature", ", feature-based")
            name = f"{task.name}-feature"
            columns.append(dataclasses.replace(column, name=name))
            # The paper's lowest is [MASK] alone.
            for other in ("100_0_0", "0_0_100"):
                expected.append((other, name, "below"))
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
    return table_parts.make_table(
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
    return table_parts.make_table(
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


_BUILDERS: dict[str, Callable[[Inputs], Table]] = {
    "table5": _table5,
    "table6": _table6,
    "table7": _table7,
    "table8": _table8,
    "figure5": _figure5,
    "stability": model_tables.stability,
    "table1": functools.partial(
        model_tables.plain,
        "table1",
        "Table 1: GLUE",
        "How does the model do on each task of GLUE?",
        "bert_base",
    ),
    "table2": model_tables.table2,
    "table3": functools.partial(
        model_tables.plain,
        "table3",
        "Table 3: SQuAD 2.0",
        "How does the model do where some questions have no answer?",
        "bert_large",
    ),
    "table4": functools.partial(
        model_tables.plain,
        "table4",
        "Table 4: SWAG",
        "How does the model choose the continuation of a sentence?",
        "bert_large",
    ),
}
