"""Compares SQuAD examples, windows and predictions with the original's."""

import collections
import json
import os
import pathlib

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad import features as squad_features
from bert_tf.tasks.squad.task import SquadTask
from tests.support import squad_goldens
from tests.support.shared_data import golden


def _build(config):
    """Returns the examples, features and tokenizer of a golden."""
    _, tokenizer = squad_goldens.build_task(config)
    read = squad_examples.build_examples(
        squad_examples.read_dataset(golden(f"squad/{config['input']}")),
        config["is_training"],
        config["version_2_with_negative"],
    )
    features = squad_features.convert_examples_to_features(
        read,
        tokenizer,
        config["max_seq_length"],
        config["doc_stride"],
        config["max_query_length"],
        config["is_training"],
    )
    return read, list(features), tokenizer


def _pad(values, length):
    return np.pad(values, [0, length - len(values)]).tolist()


class SquadGoldenTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        "v1_uncased", "v2_cased", "v1_uncased_train", "v2_cased_train"
    )
    def test_examples_and_features_equal_the_originals(self, name):
        expected = squad_goldens.read_golden(name)
        config = expected["config"]
        examples, features, tokenizer = _build(config)

        self.assertLen(examples, len(expected["examples"]))
        for example, one in zip(examples, expected["examples"], strict=True):
            values = {key: getattr(example, key) for key in one}
            values["doc_tokens"] = list(example.doc_tokens)
            self.assertEqual(values, one)

        self.assertLen(features, len(expected["features"]))
        length = config["max_seq_length"]
        # The original numbers the windows of each example from 0.
        spans = collections.Counter()
        for number, (feature, one) in enumerate(
            zip(features, expected["features"], strict=True)
        ):
            ids = feature.input_ids
            values = {
                "unique_id": 1000000000 + number,
                "qas_id": examples[feature.example_index].qas_id,
                "doc_span_index": spans[feature.example_index],
                "tokens": [
                    tokenizer.vocabulary.tokens[x] for x in feature.input_ids
                ],
                "token_to_orig_map": _by_position(
                    feature, feature.word_indices
                ),
                "token_is_max_context": _by_position(
                    feature, feature.is_max_context
                ),
                "input_ids": _pad(ids, length),
                "input_mask": _pad(np.ones_like(ids), length),
                "segment_ids": _pad(
                    np.arange(len(ids)) >= feature.doc_offset, length
                ),
                "start_position": feature.start_position,
                "end_position": feature.end_position,
                "is_impossible": examples[feature.example_index].is_impossible,
            }
            self.assertEqual(values, one)
            spans[feature.example_index] += 1

    @parameterized.parameters(
        "v1_uncased", "v2_cased", "v1_uncased_train", "v2_cased_train"
    )
    def test_batches_equal_the_originals(self, name):
        expected = squad_goldens.read_golden(name)
        config = expected["config"]
        split = "train" if config["is_training"] else "dev"
        files = {split: golden(f"squad/{config['input']}")}
        task, tokenizer = squad_goldens.build_task(config, files=files)
        features = task.featurize(
            task.read(split), tokenizer, config["is_training"]
        )
        self.assertLen(features, len(expected["features"]))
        batch = features.batch(
            np.arange(len(features)), config["max_seq_length"]
        )
        for key in ("input_ids", "input_mask", "segment_ids"):
            self.assertAllEqual(
                batch[key], [one[key] for one in expected["features"]]
            )
        for key in ("start_position", "end_position"):
            self.assertEqual(f"{key}s" in batch, config["is_training"])
            if config["is_training"]:
                self.assertAllEqual(
                    batch[f"{key}s"], [one[key] for one in expected["features"]]
                )

    def test_loss_without_mask_equals_the_original(self):
        # The inputs of these logits are padded, so the mask would matter.
        inputs = np.load(golden("model/forward.npz"))
        expected = np.load(golden("model/squad.npz"))
        batch = {
            "input_mask": inputs["input_mask"],
            "start_positions": expected["start_positions"],
            "end_positions": expected["end_positions"],
        }
        self.assertLess(batch["input_mask"].min(), 1)
        outputs = {
            name: tf.constant(expected[name])
            for name in ("start_logits", "end_logits")
        }
        losses = [
            tf.reduce_mean(SquadTask(mask_padding=mask).losses(outputs, batch))
            for mask in (False, True)
        ]
        self.assertAllClose(losses[0], expected["loss"], rtol=0, atol=1e-5)
        self.assertNotAllClose(losses[1], expected["loss"], atol=1e-3)

    @parameterized.parameters(
        ("v1_uncased", "v1_uncased", 0.0),
        ("v2_cased", "v2_cased", 0.0),
        ("v2_cased", "v2_cased.threshold-3.0", -3.0),
    )
    def test_predictions_equal_the_originals(self, name, expected, threshold):
        config = squad_goldens.read_golden(name)["config"]
        task, tokenizer = squad_goldens.build_task(
            config,
            files={"dev": golden(f"squad/{config['input']}")},
            null_score_diff_threshold=threshold or None,
        )
        examples = task.read("dev")
        features = task.featurize(examples, tokenizer)
        logits = np.load(golden(f"squad/{name}.logits.npz"))
        self.assertLen(features, len(logits["unique_ids"]))
        outputs = {
            name: list(logits[name]) for name in ("start_logits", "end_logits")
        }
        predictions = task.predict(examples, features, outputs, tokenizer)
        folder = self.create_tempdir().full_path
        task.write_report(folder, "dev", examples, predictions)

        kinds = ["predictions", "nbest_predictions"]
        if config["version_2_with_negative"]:
            kinds.append("null_odds")
        self.assertCountEqual(
            os.listdir(folder), [f"{kind}.json" for kind in kinds]
        )
        for kind in kinds:
            path = pathlib.Path(folder) / f"{kind}.json"
            written = json.loads(path.read_text(encoding="utf-8"))
            reference = squad_goldens.read_json(f"{expected}.{kind}.json")
            self.assertEqual(list(written), list(reference))
            self.assertAllClose(
                _numbers(written), _numbers(reference), rtol=0, atol=1e-6
            )
            self.assertEqual(_texts(written), _texts(reference))


def _by_position(feature, values):
    values = enumerate(values.tolist(), feature.doc_offset)
    return {str(position): value for position, value in values}


def _numbers(value):
    """Returns the numbers of JSON values in order."""
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return [number for part in parts for number in _numbers(part)]
    return [] if isinstance(value, str) else [value]


def _texts(value):
    """Returns JSON values without their numbers."""
    if isinstance(value, dict):
        return {key: _texts(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_texts(part) for part in value]
    return value if isinstance(value, str) else None


if __name__ == "__main__":
    tf.test.main()
