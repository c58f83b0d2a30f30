"""The official layouts of the files of GLUE, XNLI and SNLI."""

import os

from bert_tf.tasks.classification import glue_tasks

_PARSES = (
    "sentence1_binary_parse sentence2_binary_parse sentence1_parse "
    "sentence2_parse"
)
_NLI_END = "sentence1 sentence2"


def _header(*names):
    return " ".join(names).split()


_MNLI = _header("index promptID pairID genre", _PARSES, _NLI_END)
_ANNOTATORS = [f"label{i}" for i in range(1, 6)]
_MRPC_TEXTS = ["#1 ID", "#2 ID", "#1 String", "#2 String"]
_STSB = _header(
    "index genre filename year old_index source1 source2 sentence1 sentence2"
)
_SNLI = _header("index captionID pairID", _PARSES, _NLI_END)
XNLI_HEADER = _header(
    "language gold_label",
    _PARSES,
    _NLI_END,
    "promptID pairID genre label1 label2 label3 label4 label5",
    "sentence1_tokenized sentence2_tokenized match",
)

_INDEXED_PAIR = _header("index", _NLI_END)
_DIAGNOSTIC = [
    "Lexical Semantics",
    "Predicate-Argument Structure",
    "Logic",
    "Knowledge",
    "Domain",
    "Premise",
    "Hypothesis",
    "Label",
]

# The layout of each file: task, split, name, header (or None), columns of the
# texts, column of the label (or None).
LAYOUTS = [
    ("cola", "train", "train.tsv", None, (3,), 1),
    ("cola", "dev", "dev.tsv", None, (3,), 1),
    ("cola", "test", "test.tsv", ["index", "sentence"], (1,), None),
    ("sst-2", "train", "train.tsv", ["sentence", "label"], (0,), 1),
    ("sst-2", "test", "test.tsv", ["index", "sentence"], (1,), None),
    ("mrpc", "train", "train.tsv", ["Quality", *_MRPC_TEXTS], (3, 4), 0),
    ("mrpc", "test", "test.tsv", ["index", *_MRPC_TEXTS], (3, 4), None),
    ("mrpc", "test", "msr_paraphrase_test.txt",
     ["Quality", *_MRPC_TEXTS], (3, 4), 0),
    ("sts-b", "train", "train.tsv", [*_STSB, "score"], (7, 8), 9),
    ("sts-b", "test", "test.tsv", _STSB, (7, 8), None),
    ("qqp", "train", "train.tsv",
     _header("id qid1 qid2 question1 question2 is_duplicate"), (3, 4), 5),
    ("qqp", "test", "test.tsv",
     _header("id question1 question2"), (1, 2), None),
    ("mnli", "train", "train.tsv",
     [*_MNLI, "label1", "gold_label"], (8, 9), 11),
    ("mnli", "dev_mismatched", "dev_mismatched.tsv",
     [*_MNLI, *_ANNOTATORS, "gold_label"], (8, 9), 15),
    ("mnli", "test_matched", "test_matched.tsv", _MNLI, (8, 9), None),
    ("qnli", "dev", "dev.tsv",
     _header("index question sentence label"), (1, 2), 3),
    ("qnli", "test", "test.tsv",
     _header("index question sentence"), (1, 2), None),
    ("rte", "train", "train.tsv", [*_INDEXED_PAIR, "label"], (1, 2), 3),
    ("rte", "test", "test.tsv", _INDEXED_PAIR, (1, 2), None),
    ("wnli", "dev", "dev.tsv", [*_INDEXED_PAIR, "label"], (1, 2), 3),
    ("wnli", "test", "test.tsv", _INDEXED_PAIR, (1, 2), None),
    ("ax", "test", "AX.tsv", _INDEXED_PAIR, (1, 2), None),
    ("ax", "test", "diagnostic.tsv", _INDEXED_PAIR, (1, 2), None),
    ("ax", "test", "diagnostic-full.tsv", _DIAGNOSTIC, (5, 6), 7),
    ("xnli", "train", "multinli/multinli.train.zh.tsv",
     _header("premise hypo label"), (0, 1), 2),
    ("xnli", "dev", "xnli.dev.tsv", XNLI_HEADER, (6, 7), 1),
    ("xnli", "test", "XNLI-1.0/xnli.test.tsv", XNLI_HEADER, (6, 7), 1),
    ("snli", "train", "train.tsv",
     [*_SNLI, "label1", "gold_label"], (7, 8), 10),
    ("snli", "test", "snli_1.0_test.txt",
     _header("gold_label", _PARSES, _NLI_END, "captionID pairID label1"),
     (5, 6), 0),
]  # fmt: skip


def write(folder, name, split, rows):
    """Writes the file of a split in its official layout; returns its path.

    Args:
      folder: The folder.
      name: The task.
      split: The split; the dev set of a task has the layout of its training
        data unless it has its own.
      rows: The text, second text or None, and label or None of each row.
    """
    layouts = {
        split: layout
        for task, split, *layout in reversed(LAYOUTS)
        if task == name
    }
    kind = split.split("_")[0]
    file, header, texts, label = next(
        layouts[s]
        for s in (split, *[x for x in layouts if x.startswith(kind)], "train")
        if s in layouts
    )
    official = glue_tasks.get_task(name)
    if split not in layouts:
        file = official.file_names(split)[0]
    width = len(header) if header else 4
    lines = ["\t".join(header)] if header else []
    for number, (text_a, text_b, right) in enumerate(rows):
        fields = [f"{number}.{column}" for column in range(width)]
        for column, text in zip(texts, (text_a, text_b), strict=False):
            fields[column] = text
        if label is not None:
            fields[label] = str(right)
        if header and "language" in header:
            fields[0] = "zh"
        lines.append("\t".join(fields))
    path = os.path.join(folder, file)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")
    return path
