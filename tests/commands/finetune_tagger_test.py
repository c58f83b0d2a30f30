"""Tests for run/finetune_tagger.py, from the flags to predictions."""

import random

import pytest
import tensorflow as tf

import bert_tf
from bert_tf.commands import finetune_tagger
from bert_tf.commands.finetune_tagger import TaggerConfig
from tests.support import command_case
from tests.support import tiny_model

_TAGS = {"cat": "PET", "dog": "PET", "mat": "THING", "東": "THING"}
_WORDS = (*_TAGS, "the", "sat", "on", "matting")


def _write(path, count, seed, with_tags=True):
    """Writes documents whose words determine IOB1 tags; returns sentences.

    Each entity is one word and has an I- tag. Only a dog right after a cat has
    B-, because I- would join two entities of one kind.
    """
    rng = random.Random(seed)
    lines, sentences = [], []
    for number in range(count):
        if number % 3 == 0:
            lines += ["-DOCSTART- -X- O", ""]
        words: list[str] = []
        for _ in range(rng.randint(1, 6)):
            previous = words[-1] if words else "the"
            kind = _TAGS.get(previous)
            following = [
                word for word in _WORDS if kind is None or word not in _TAGS
            ]
            if previous == "cat":
                following.append("dog")
            words.append(rng.choice(following))
            is_next = words[-1] == "dog" and previous == "cat"
            kind = _TAGS.get(words[-1])
            tag = "O" if kind is None else f"{'B' if is_next else 'I'}-{kind}"
            lines.append(f"{words[-1]} NN {tag}" if with_tags else words[-1])
        sentences.append(words)
        lines.append("")
    path.write_text("\n".join(lines), encoding="utf-8")
    return sentences


class FinetuneTaggerTest(command_case.CommandCase):
    def setUp(self):
        super().setUp()
        self.model = tiny_model.write_initialized(
            str(self.folder / "pretrained")
        )
        _write(self.folder / "eng.train", 120, 0)
        self.dev = _write(self.folder / "eng.testa", 21, 1)
        self.test = _write(self.folder / "eng.testb", 9, 2, with_tags=False)

    def _run(self, **flags):
        flags = {
            "data_dir": str(self.folder),
            "pretrained_model_dir": self.model,
            "output_dir": str(self.output),
            "max_seq_length": 12,
            "train_batch_size": "4",
            "learning_rate": "0.01",
            "num_train_epochs": "6",
            "num_length_buckets": 1,
            "do_eval": True,
        } | flags
        finetune_tagger.main(TaggerConfig(**flags))
        return self.read_json("eval_results.json")

    def _check_predictions(self):
        """Compares the stored model's predictions for dev with the file's."""
        dev = self.lines("dev_predictions.jsonl")
        for row in dev:
            self.assertLen(row.pop("gold_tags"), len(row["words"]))
        self.assertEqual(self.predict(self.folder / "eng.testa"), dev)

    @pytest.mark.slow
    def test_learns_documents_of_iob1(self):
        results = self._run(do_train=True, do_predict=True)
        self.assertGreater(results["dev"]["f1"], 0.6)
        self.assertNotIn("test", results)
        text = self.read("eval_results.txt")
        self.assertIn(f"eval_f1 = {results['dev']['f1']:.3}"[:14], text)
        # Sentences as rows: 120 rows, 4 per step, 6 epochs make 180 steps.
        self.assertAllClose(results["global_step"], 180, rtol=0.2)
        self.assertTrue((self.output / "entity_scores.png").exists())
        self.assertIn("PET ", self.read("entity_scores.txt"))
        dev = self.lines("dev_predictions.jsonl")
        self.assertEqual([x["words"] for x in dev], self.dev)
        test = self.lines("test_predictions.jsonl")
        self.assertEqual([x["words"] for x in test], self.test)
        self.assertFalse((self.output / "test_entity_scores.txt").exists())

        self._check_predictions()
        self.assertEqual(self.predict(self.folder / "eng.testb"), test)
        self._check_raw_text()
        # Without training, the stored model predicts the same.
        again = self._run(do_predict=True, pretrained_model_dir=None)
        self.assertAllClose(again["dev"], results["dev"], atol=1e-6)

    def _check_raw_text(self):
        path = self.folder / "raw.txt"
        path.write_text("The dog, the mat.\n\n東\n", encoding="utf-8")
        first, second, third = self.predict(path)
        self.assertEqual(first["words"], ["The", "dog", ",", "the", "mat", "."])
        self.assertEqual(first["offsets"][4], [13, 16])
        self.assertEqual(first["tags"][1], "B-PET")
        self.assertEqual(second, {"words": [], "tags": [], "offsets": []})
        self.assertEqual(third["tags"], ["B-THING"])

    @pytest.mark.thorough
    def test_feature_based_run_leaves_bert_unchanged(self):
        arguments = {
            "approach": "feature_based",
            "layer_combination": "weighted_sum_all_layers",
            "lstm_size": 16,
        }
        results = self._run(do_train=True, learning_rate="0.02", **arguments)
        self.assertGreater(results["dev"]["f1"], 0.7)
        task = self.read_json("model/task.json")
        for name, value in arguments.items():
            self.assertEqual(task[name], value)
        model = bert_tf.load_model(str(self.output / "model"))
        before = bert_tf.load_model(self.model)
        for ours, theirs in zip(
            model.bert.weights, before.weights, strict=True
        ):
            self.assertAllEqual(ours, theirs)
        self.assertNotAllClose(model.combination.layer_weights, [0.0, 0.0])
        self._check_predictions()


if __name__ == "__main__":
    tf.test.main()
