"""Tests of training embeddings from pairs: files, features, losses, scores."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.tasks.embeddings import task as embeddings
from bert_tf.tasks.embeddings.examples import PairFiles
from bert_tf.tasks.embeddings.task import PairsTask
from bert_tf.tasks.task_files import Data
from tests.support import tiny_model


def _losses(vectors, ids, blank=()):
    """Returns the cross entropies, computed one candidate at a time."""
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    rows = [row for row in range(len(ids)) if row not in blank]
    losses = []
    pairs = [*ids[:, :2], *ids[:, 1::-1]]
    for row in rows:
        own, others = 20 * unit[row, 0] @ unit[row, 1], []
        anchor = ids[row, 0]
        related = {other for one, other in pairs if one == anchor}
        for other in rows:
            for place in range(1, ids.shape[1]):
                if ids[other, place] not in {anchor, *related}:
                    others.append(20 * unit[row, 0] @ unit[other, place])
        losses.append(np.log(np.exp([own, *others]).sum()) - own)
    return np.array(losses)


class LossesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        # Each text occurs once.
        ([[0, 1], [2, 3], [4, 5], [6, 7]],),
        # A positive of two anchors, an anchor with two positives, and an
        # anchor that is the positive of another, which is itself a positive.
        ([[0, 1], [2, 1], [0, 5], [6, 0], [7, 6]],),
        # With negatives; 4 is a positive elsewhere, and 2 one of anchor 3.
        ([[0, 1, 2], [3, 4, 5], [6, 7, 4], [8, 9, 2], [3, 2, 9]],),
        # Ids of labels replace the ids of texts.
        ([[0, 0], [1, 1], [0, 0], [2, 2]],),
    )
    def test_in_batch_negatives_equal_those_of_each_row(self, ids):
        ids = np.array(ids, np.int32)
        vectors = np.random.default_rng(1).normal(size=[*ids.shape, 5])
        vectors = vectors.astype(np.float32)
        received = embeddings.in_batch_losses(
            tf.constant(vectors), tf.constant(ids), tf.ones([len(ids)], bool)
        )
        self.assertAllClose(received, _losses(vectors, ids), rtol=1e-5)

    def test_blank_rows_are_no_candidates(self):
        ids = np.array([[0, 1], [2, 3], [4, 5], [0, 0]], np.int32)
        vectors = np.random.default_rng(1).normal(size=[4, 2, 5])
        vectors = vectors.astype(np.float32)
        mask = np.ones([4, 2, 3], np.int32)
        mask[3] = 0
        received = PairsTask().losses(
            {"embedding": tf.constant(vectors)},
            {"text_ids": tf.constant(ids), "input_mask": tf.constant(mask)},
        )
        expected = _losses(vectors, ids, blank=[3])
        self.assertAllClose(received[:3], expected, rtol=1e-5)

    def test_scores_are_learned_as_cosines(self):
        vectors = np.float32([[[3, 0], [2, 2]], [[0, 1], [0, -4]]])
        received = PairsTask().losses(
            {"embedding": tf.constant(vectors)},
            {"scores": tf.constant([0.5, -0.25])},
        )
        expected = [(0.5**0.5 - 0.5) ** 2, 0.75**2]
        self.assertAllClose(received, expected, rtol=1e-5)

    def test_only_in_batch_negatives_couple_rows(self):
        def task(score):
            pair = {"text_a": "cat", "text_b": "dog"} | score
            data = Data([pair], None)
            return PairsTask(files={"train": "x"}, data={"train": data})

        self.assertEqual(task({}).coupled, "embedding")
        self.assertIsNone(task({"score": 0.5}).coupled)


class ScoresTest(tf.test.TestCase):
    def test_search_is_scored_by_hand(self):
        # Angles of texts and queries, so nearer angles are more similar.
        texts = {"a": 0.0, "b": 0.2, "c": 0.5, "d": 1.0, "e": 1.6}
        queries = {"x": 0.15, "y": 0.55, "z": 2.0, "a": 0.05}
        rows = [
            ("x", "b"),  # Rank 1.
            ("y", "d"),  # After c and b: rank 3; a has rank 4.
            ("y", "a"),
            ("z", "c", "e"),  # After e and d: rank 3.
            ("a", "b"),  # The query itself is left out: rank 1.
        ]
        places = texts | queries | {"a": 0.0}
        groups = [
            np.array([[np.cos(places[x]), np.sin(places[x])] for x in row])
            for row in rows
        ]
        # All rows must have three texts, so "e" fills them up.
        rows = [(*row, "e")[:3] for row in rows]
        third = groups[3][2]
        units = np.float32(
            [group if len(group) == 3 else [*group, third] for group in groups]
        )
        received = embeddings.score_retrieval(rows, units)
        order = sorted(texts, key=lambda x: abs(texts[x] - places["y"]))
        self.assertEqual(order, ["c", "b", "d", "a", "e"])
        self.assertAllClose(
            received["mrr@10"], np.mean([1, 1 / 3, 1 / 3, 1]), rtol=1e-6
        )
        gain = [1 / np.log2(1 + rank) for rank in range(1, 6)]
        two = (gain[2] + gain[3]) / (gain[0] + gain[1])
        self.assertAllClose(
            received["ndcg@10"], np.mean([1, two, gain[2], 1]), rtol=1e-6
        )

    def test_only_the_first_ten_texts_count(self):
        angles = np.linspace(0.1, 1.2, 12)
        rows = [("x", f"t{number}") for number in range(12)]
        units = np.stack(
            [[[1.0, 0.0], [np.cos(x), np.sin(x)]] for x in angles]
        ).astype(np.float32)
        rows[0] = ("other", "t0")
        units[0, 0] = [-1.0, 0.0]
        received = embeddings.score_retrieval(rows, units)
        # "x" finds its own text second; "other" finds its own after ten.
        self.assertAllClose(received["mrr@10"], (1 / 2 + 0) / 2)

    def test_scores_are_compared_by_rank(self):
        units = np.float32([[[1, 0], [1, x]] for x in (0.1, 3.0, 0.5, 1.0)])
        groups = [
            {"text_a": "cat", "text_b": "dog", "score": score}
            for score in (0.9, -1.0, 0.8, 0.1)
        ]
        scores = PairsTask().score(groups, list(units))
        self.assertAllClose(scores["spearmanr"], 1.0)
        cosines = 1 / np.sqrt(1 + np.square([0.1, 3.0, 0.5, 1.0]))
        expected = np.corrcoef(cosines, [0.9, -1.0, 0.8, 0.1])[0, 1]
        self.assertAllClose(scores["pearson"], expected, rtol=1e-5)


class FeaturesTest(tf.test.TestCase):
    def test_equal_texts_share_a_row_and_a_number(self):
        examples = [
            {"anchor": "the cat", "positive": "dog"},
            {"anchor": "dog sat on the mat", "positive": "the cat"},
            {"anchor": "the cat", "positive": "the dog"},
        ]
        tokenizer = tiny_model.tokenizer()
        task = PairsTask(max_seq_length=12)
        features = task.featurize(examples, tokenizer, is_training=True)
        self.assertLen(features.rows, 4)
        self.assertAllEqual(features.lengths, [4, 7, 4])
        batch = features.batch(np.array([1, 0]), 8)
        self.assertEqual(batch["input_ids"].shape, (2, 2, 8))
        words = [
            " ".join(tiny_model.TOKENS[i] for i in row if i)
            for row in batch["input_ids"].reshape([4, 8])
        ]
        self.assertEqual(
            words,
            [
                "[CLS] dog sat on the mat [SEP]",
                "[CLS] the cat [SEP]",
                "[CLS] the cat [SEP]",
                "[CLS] dog [SEP]",
            ],
        )
        self.assertAllEqual(batch["text_ids"], [[1, 2], [2, 0]])
        # Dev has no loss, which would depend on the size of its batches.
        features = task.featurize(examples, tokenizer)
        self.assertEqual(features.targets, {})


class FilesTest(tf.test.TestCase, parameterized.TestCase):
    def _read(self, contents):
        name = "a.jsonl" if contents.startswith("{") else "a.csv"
        path = self.create_tempfile(name, contents).full_path
        return PairFiles(files={"train": path}).read("train")

    def test_reads_pairs_with_and_without_scores(self):
        found = self._read("id,anchor,positive\n1,cat,dog\n2,sat,mat\n")
        self.assertEqual(found[1], {"anchor": "sat", "positive": "mat"})
        found = self._read("negative,anchor,positive\nx,cat,dog\ny,sat,mat\n")
        self.assertEqual(list(found[0].values()), ["cat", "dog", "x"])
        found = self._read("text_a,text_b,score\ncat,dog,0.5\n")
        expected = {"text_a": "cat", "text_b": "dog", "score": 0.5}
        self.assertEqual(found, [expected])

    def test_one_anchor_may_search_or_have_negatives(self):
        rows = "anchor,positive\ncat,dog\ncat,mat\n"
        path = self.create_tempfile("dev.csv", rows).full_path
        self.assertLen(PairFiles(files={"dev": path}).read("dev"), 2)
        self.assertLen(self._read("anchor,positive,negative\na,b,c\n"), 1)

    @parameterized.parameters(
        (
            "text,label\ncat,x\n",
            "must have anchor, positive and maybe negative",
        ),
        ("anchor,positive\ncat,dog\n,mat\n", "line 3 has an empty text in"),
        ("anchor,positive\ncat,dog\nsat,dog\n", "two different positives"),
        ("anchor,positive\ncat,dog\n", "two different positives"),
        ("anchor,positive\ncat,dog\ncat,mat\n", "two different anchors"),
        ("anchor,positive,score\ncat,dog,0\na,b,1\n", "no column of both"),
        ("text_a,text_b,score\ncat,dog,x\n", "line 2 must have a number"),
        ("text_a,text_b,score\ncat,dog,4.5\n", "a score from -1 to 1"),
        *(
            (
                '{"anchor": "cat", "positive": "dog"}\n'
                f'{{"anchor": "on", "positive": "mat", "{name}": "sat"}}\n',
                f"line 2 has a {name}",
            )
            for name in ("negative", "score")
        ),
    )
    def test_refuses_files_without_valid_pairs(self, contents, message):
        with self.assertRaisesRegex(UserError, message):
            self._read(contents)


if __name__ == "__main__":
    tf.test.main()
