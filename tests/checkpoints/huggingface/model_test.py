"""Tests for bert_tf.checkpoints.huggingface.model: directories as a whole."""

import dataclasses
import os
import sys
from unittest import mock

import safetensors.numpy
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints.huggingface import model as huggingface
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError
from bert_tf.text.vocabulary import Vocabulary
from tests.support import huggingface_case as case


class FilesTest(case.DirectoryCase, tf.test.TestCase, parameterized.TestCase):
    def test_recognizes_its_directories(self):
        self.assertFalse(huggingface.recognizes(self.path))
        self.write_all()
        self.assertTrue(huggingface.recognizes(self.path))
        self.remove("config.json")
        self.assertTrue(huggingface.recognizes(self.path))
        self.remove("model.safetensors")
        self.assertFalse(huggingface.recognizes(self.path))
        self.write("config.json", {"registered_name": "keras_hub>BertBackbone"})
        self.assertFalse(huggingface.recognizes(self.path))
        self.write("config.json", {"model_type": "distilbert"})
        self.assertTrue(huggingface.recognizes(self.path))
        self.write("config.json", "{")
        self.assertFalse(huggingface.recognizes(self.path))
        self.assertFalse(
            huggingface.recognizes(os.path.join(self.path, "config.json"))
        )
        self.assertFalse(huggingface.recognizes("/nowhere"))

    def _shard(self, suffix="safetensors"):
        """Splits the weights into two files; returns the index."""
        self.write_all()
        self.remove("model.safetensors")
        values = case.make_values()
        places = {
            name: f"model-0000{1 + index % 2}-of-00002.{suffix}"
            for index, name in enumerate(values)
        }
        for file in set(places.values()):
            part = {n: x for n, x in values.items() if places[n] == file}
            self.write(file, safetensors.numpy.save(part))
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        self.write("model.safetensors.index.json", index)
        return index

    def test_shards(self):
        self._shard()
        self.assertTrue(huggingface.recognizes(self.path))
        sharded = self.read().weights
        self.write_all()
        whole = self.read().weights
        self.assertEqual(set(sharded), set(whole))
        for name, value in whole.items():
            self.assertAllEqual(sharded[name], value, name)

    def test_a_missing_shard(self):
        self._shard()
        self.remove("model-00002-of-00002.safetensors")
        self.assert_refused("names model-00002-of-00002.safetensors, which")

    @parameterized.parameters("moved", "lost", "unlisted")
    def test_an_index_that_does_not_fit(self, fault):
        index = self._shard()
        places = index["weight_map"]
        name = "bert.pooler.dense.bias"
        if fault == "moved":
            places[name] = places["bert.pooler.dense.weight"]
        elif fault == "lost":
            places["bert.extra"] = places[name]
        else:
            del places[name]
        self.write("model.safetensors.index.json", index)
        self.assert_refused("do not agree on what each holds, first on bert")

    @parameterized.parameters(
        ("{}",),
        ("[]",),
        ('{"weight_map": {"a": "../b.safetensors"}}',),
        ('{"weight_map": {"a": 3}}',),
    )
    def test_an_index_without_a_weight_map(self, contents):
        self._shard()
        self.write("model.safetensors.index.json", contents)
        self.assert_refused("must hold (`weight_map`|one JSON object)")

    @parameterized.parameters(
        "pytorch_model.bin", "pytorch_model.bin.index.json"
    )
    def test_pytorch_files_need_pytorch(self, name):
        self.write_all()
        self.remove("model.safetensors")
        self.write(name, {"weight_map": {"a": "pytorch_model-1.bin"}})
        self.write("pytorch_model-1.bin", b"")
        self.assertTrue(huggingface.recognizes(self.path))
        with mock.patch.dict(sys.modules, {"torch": None}):
            self.assert_refused("needs PyTorch, which is not installed; `pip")

    def test_no_weights(self):
        self.write_all()
        self.remove("model.safetensors")
        self.write("flax_model.msgpack", b"")
        self.assert_refused(
            r"expected one of model\.safetensors, .*, tf_model\.h5.* in it\. "
            r"Received: .* holds config\.json, flax_model\.msgpack"
        )

    @parameterized.parameters("config.json", "tokenizer.json")
    def test_json_that_is_no_object(self, name):
        self.write_all()
        self.write(name, "[3]")
        self.assert_refused(f"{name} must hold one JSON object")

    def test_no_vocabulary(self):
        self.write_all()
        self.remove("vocab.txt")
        self.assert_refused("expected vocab.txt or tokenizer.json")


class WriteTest(case.DirectoryCase, tf.test.TestCase, parameterized.TestCase):
    def _stored(self, architecture="BertForPreTraining", **changes):
        self.write_all(architecture)
        stored = self.read()
        return dataclasses.replace(stored, **changes)

    def test_weights_of_the_class_alone(self):
        stored = self._stored(task={"kind": "masked_lm", "max_seq_length": 6})
        path, _ = self.written(stored)
        written = safetensors.numpy.load_file(
            os.path.join(path, "model.safetensors")
        )
        self.assertEqual(set(written), set(case.make_values("BertForMaskedLM")))

    def test_no_vocabulary(self):
        stored = self._stored(vocabulary=None, tokenizer_settings=None)
        path, sentences = self.written(stored)
        self.assertIn("no tokenizer files", " ".join(sentences))
        self.assertSameElements(
            os.listdir(path), ["config.json", "model.safetensors"]
        )

    def test_tokenizer_files(self):
        path, _ = self.written(self._stored())
        self.assertSameElements(
            os.listdir(path),
            [
                "config.json",
                "model.safetensors",
                "special_tokens_map.json",
                "tokenizer.json",
                "tokenizer_config.json",
                "vocab.txt",
            ],
        )
        config = case.read_json(path, "tokenizer_config.json")
        self.assertEqual(config["tokenizer_class"], "BertTokenizer")
        self.assertEqual(config["model_max_length"], 7)
        values = case.read_json(path, "tokenizer.json")
        for name, part in case.make_tokenizer_json().items():
            if name != "added_tokens":
                part = part | {"max_input_chars_per_word": 200}
                self.assertEqual(
                    values[name], {key: part[key] for key in values[name]}
                )
        self.assertEqual(
            [(x["id"], x["content"]) for x in values["added_tokens"]],
            list(enumerate(case.TOKENS[:5])),
        )
        self.assertEqual(case.read_json(path, "config.json")["pad_token_id"], 0)

    @parameterized.parameters(
        ("left_to_right", "is bidirectional"),
        ("labels", "as many different names as the classifier has rows, 3"),
        ("pooler", "lacks bert/pooler, which Hugging Face's BertForSequence"),
        ("vocabulary", "has 20 lines, but `vocab_size`"),
    )
    def test_refuses_before_writing(self, fault, message):
        stored = self._stored("BertForSequenceClassification")
        changes = {
            "left_to_right": {
                "config": dataclasses.replace(stored.config, left_to_right=True)
            },
            "labels": {"task": {"kind": "classification", "labels": ["a"]}},
            "pooler": {
                "weights": stored.weights.select(lambda n: "pooler" not in n)
            },
            "vocabulary": {"vocabulary": Vocabulary([*case.TOKENS, "d"])},
        }[fault]
        stored = dataclasses.replace(stored, **changes)
        path = self.create_tempdir().full_path
        with self.assertRaisesRegex(UserError, message):
            huggingface.write_model(path, stored)
        self.assertEmpty(os.listdir(path))

    def test_holds_one_tensor_at_a_time(self):
        """Source tensors are read between writes, not before them."""
        stored = self._stored()
        reads = []

        def read(name):
            path = os.path.join(target, "model.safetensors")
            reads.append(os.path.exists(path))
            return stored.weights[name]

        target = self.create_tempdir().full_path
        weights = Tensors(stored.weights.shapes, read)
        huggingface.write_model(
            target, dataclasses.replace(stored, weights=weights)
        )
        self.assertLen(reads, len(stored.weights))
        self.assertTrue(all(reads))


if __name__ == "__main__":
    tf.test.main()
