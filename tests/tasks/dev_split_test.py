"""Tests for bert_tf.tasks.dev_split."""

import collections
import gzip
import json
import os
import random
import types

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.tasks import dev_split
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.task_files import ClassificationFiles
from bert_tf.tasks.embeddings.examples import PairFiles
from bert_tf.tasks.multiple_choice import examples as multiple_choice_examples
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceFiles
from bert_tf.tasks.squad.examples import SquadFiles
from bert_tf.tasks.tagging.examples import TaggingFiles
from bert_tf.tasks.task_files import SplitKey


def _chosen(keys, fraction):
    is_dev = dev_split.choose(keys, fraction)
    return {key.text for key, one in zip(keys, is_dev, strict=True) if one}


class ChooseTest(tf.test.TestCase, parameterized.TestCase):
    def test_each_label_gives_its_share_in_any_order(self):
        sizes = {"a": 100, "b": 30, "c": 8, "d": 2}
        keys = [
            SplitKey(f"{label}{number}", (label,))
            for label, size in sizes.items()
            for number in range(size)
        ]
        chosen = _chosen(keys, 0.1)
        counts = collections.Counter(text[0] for text in chosen)
        self.assertEqual(counts, {"a": 10, "b": 3, "c": 1, "d": 1})
        random.Random(0).shuffle(keys)
        self.assertEqual(_chosen(keys, 0.1), chosen)
        # More rows of another label must not change this choice.
        more = [SplitKey(f"e{number}", ("e",)) for number in range(9)]
        kept = {x for x in _chosen([*more, *keys], 0.1) if x[0] != "e"}
        self.assertEqual(kept, chosen)
        self.assertContainsSubset(chosen, _chosen(keys, 0.5))
        # Even at 99%, each label keeps a text to train on.
        rest = {key.text for key in keys} - _chosen(keys, 0.99)
        self.assertEqual({text[0] for text in rest}, set(sizes))

    def test_equal_texts_stay_together(self):
        keys = [SplitKey(str(i % 20), ("ab"[i % 3 == 0],)) for i in range(60)]
        is_dev = dev_split.choose(keys, 0.3)
        self.assertEqual(is_dev[:20] * 3, is_dev)
        self.assertEqual(sum(is_dev[:20]), 6)

    def test_texts_with_several_labels_count_for_the_rarest(self):
        keys = [SplitKey(str(i), ("a", "b")[: 1 + (i < 2)]) for i in range(20)]
        keys.append(SplitKey("none"))
        chosen = _chosen(keys, 0.1)
        self.assertLen(chosen & {"0", "1"}, 1)
        self.assertLen(chosen, 1 + 2)

    @parameterized.parameters(
        (
            [("x", "a"), ("y", "a"), ("z", "b")],
            0.1,
            "one text of 'b'; add rows",
        ),
        (
            [("x", "a"), ("y", "a"), ("z", "b"), ("z", "b")],
            0.1,
            "one text of 'b'",
        ),
        (
            [(c, c) for c in "abcdefg"],
            0.1,
            "Received: one text of 'a'.*'e' and 2",
        ),
        ([("x", ""), ("x", "")], 0.1, "two different texts in .*Received: 1;"),
        ([], 0.1, "Received: 0;"),
        ([("x", ""), ("y", "")], 1.0, "above 0 and below 1. Received: 1.0"),
        ([("x", ""), ("y", "")], "0.1", "above 0 and below 1. Received: '0.1'"),
    )
    def test_impossible_splits_are_refused(self, rows, fraction, message):
        keys = [SplitKey(text, tuple(label)) for text, label in rows]
        with self.assertRaisesRegex(UserError, message) as caught:
            dev_split.choose(keys, fraction)
        self.assertNotIn("\n", str(caught.exception))


_CSV = "id,text,label\n" + "".join(
    f'{i},"a ""{i}""\nb",{"xy"[i % 2]}\n' for i in range(20)
)
_TSV = "text\tlabel\n" + "".join(f"{x}\tx\n" for x in "abcdefgh" * 2)
_ROWS = [{"text": f"t{i}", "label": "xy"[i % 2], "n": [i]} for i in range(20)]
_CONLL = "-DOCSTART- O\n\n" + "-DOCSTART- O\n\n".join(
    f"Ada{i} B-PER\nsat O\n\nBob B-PER\n\n" for i in range(10)
)
_SQUAD = {
    "version": "1",
    "data": [
        {
            "title": str(article),
            "paragraphs": [
                {
                    "context": f"Ada {article} {number}.",
                    "qas": [
                        {
                            "id": f"{article}.{number}.{i}",
                            "question": "Who?",
                            # The second answer is not at 9, so training skips
                            # it.
                            "answers": [{"text": "Ada", "answer_start": i * 9}],
                        }
                        for i in range(2)
                    ],
                }
                for number in range(4)
            ],
        }
        for article in range(3)
    ],
}
_PAIRS = "anchor,positive\n" + "".join(f"q{i // 2},a{i}\n" for i in range(32))
_COLUMNS = Columns("text", labels=("label",))
_CLASSIFIED = ClassificationFiles(columns=_COLUMNS)
_CHOICES = MultipleChoiceFiles(
    columns=multiple_choice_examples.Columns(
        ("text", "label"), "id", right="text"
    )
)
_NUMBERS = ClassificationFiles(
    columns=Columns("text", labels=("id",)), problem_type="regression"
)
_FORMS = (
    ("train.csv", _CSV, _CLASSIFIED, ".csv"),
    ("train.csv.gz", _CSV.replace("\n", "\r\n"), _NUMBERS, ".csv"),
    ("train.csv", "sep=;\n" + _CSV.replace(",", ";"), _CHOICES, ".csv"),
    ("train.tsv", _TSV, _CLASSIFIED, ".tsv"),
    ("train.jsonl", "\n".join(map(json.dumps, _ROWS)), _CLASSIFIED, ".jsonl"),
    ("train.json", json.dumps(_ROWS, indent=1), _CLASSIFIED, ".jsonl"),
    ("train.conll", _CONLL, TaggingFiles(), ".conll"),
    ("train.json", json.dumps(_SQUAD), SquadFiles(), ".json"),
    ("train.csv", _PAIRS, PairFiles(), ".csv"),
)  # fmt: skip


class SplitTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*_FORMS)
    def test_parts_are_read_as_they_are_written(
        self, name, contents, task, ending
    ):
        folder = self.create_tempdir().full_path
        path = os.path.join(folder, name)
        with (gzip.open if name.endswith("gz") else open)(path, "wb") as file:
            file.write(contents.encode())
        config = types.SimpleNamespace(
            train_file=path,
            dev_fraction=0.25,
            output_dir=folder,
            do_train=True,
            do_eval=True,
        )
        parts = dev_split.split(task, config)
        self.assertEqual(
            {**parts.files},
            {x: f"{folder}/split/{x}{ending}" for x in ("train", "dev")},
        )
        dev_split.write(parts, path)
        read = type(task)(**parts.arguments() | {"data": {}}).load()
        whole = type(task)(**task.arguments() | {"files": {"dev": path}}).load()
        texts = {}
        for split, examples in ((x, read.data[x].examples) for x in read.data):
            keys = parts.split_keys(parts.data[split].examples)
            self.assertEqual(read.split_keys(examples), keys)
            texts[split] = {key.text for key in keys}
            self.assertNotEmpty(keys)
        self.assertEmpty(texts["train"] & texts["dev"])
        keys = whole.split_keys(whole.data["dev"].examples)
        self.assertEqual(texts["train"] | texts["dev"], {x.text for x in keys})
        self.assertAlmostEqual(
            len(texts["dev"]) / len({x.text for x in keys}), 0.25, delta=0.08
        )
        # Without training, the dev set must be the same.
        config.do_train = False
        alone = dev_split.split(task, config)
        self.assertEqual(alone.data["dev"], parts.data["dev"])
        self.assertEqual([*alone.data], ["dev"])

    def test_without_the_flag_nothing_changes(self):
        config = types.SimpleNamespace(
            train_file=None, dev_fraction=None, do_train=True, do_eval=True
        )
        self.assertIs(dev_split.split(_CLASSIFIED, config), _CLASSIFIED)


if __name__ == "__main__":
    tf.test.main()
