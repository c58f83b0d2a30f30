"""Tests for bert_tf.experiments.costs."""

import dataclasses
import os

import tensorflow as tf

from bert_tf.experiments import costs
from bert_tf.experiments import scales
from bert_tf.experiments.corpus import Corpus
from bert_tf.experiments.plan import Plan
from bert_tf.experiments.starts import Variant

_PHASES = (
    {"max_seq_length": 128, "max_predictions_per_seq": 20},
    {"max_seq_length": 512, "max_predictions_per_seq": 77},
)


class CostsTest(tf.test.TestCase):
    def test_phases_of_pretraining_do_their_own_steps(self):
        config = scales.read("paper").config("12_768_12")
        encoder, table = costs.weights(config)
        rows = {"train_batch_size": "256", "num_train_steps": "1000000"}
        stops = ({"stop_at_step": "900000"}, {"stop_at_step": "1000000"})
        phases = [
            rows | stop | x for stop, x in zip(stops, _PHASES, strict=True)
        ]
        first = 900_000 * (128 * encoder + 20 * table)
        second = 100_000 * (512 * encoder + 77 * table)
        expected = 6.0 * 256 * (first + second)
        work = costs.pretraining(config, phases)
        self.assertAllClose(work / expected, 1.0)
        # A step beyond the schedule is not done.
        phases[1]["stop_at_step"] = 2_000_000
        self.assertEqual(costs.pretraining(config, phases), work)

    def test_the_paper_scale_reads_steps_and_batch_of_its_flag_files(self):
        folder = self.create_tempdir().full_path
        corpus = Corpus("{out}/c", {"train.txt": 1000, "heldout.txt": 10})
        scale = scales.read("paper")
        work = Plan(scale, folder, corpus).pretraining(Variant("bert")).work
        encoder, table = costs.weights(scale.config(scale.base))
        tokens = 0.9 * 128 + 0.1 * 512
        predictions = 0.9 * 20 + 0.1 * 77
        expected = 6.0 * 256e6 * (tokens * encoder + predictions * table)
        self.assertAllClose(work / expected, 1.0)
        # Another flag file.
        path = os.path.join(folder, "half.flags")
        with open(path, "w", encoding="utf-8") as file:
            file.write("--flagfile=base_phase2.flags\n--train_batch_size=128\n")
        phases = [
            {**x, "pretraining": {**x["pretraining"], "flagfile": path}}
            for x in scale.phases[1:]
        ]
        half = dataclasses.replace(scale, phases=phases)
        work = Plan(half, folder, corpus).pretraining(Variant("bert")).work
        expected = 6.0 * 128e6 * (512 * encoder + 77 * table)
        self.assertAllClose(work / expected, 1.0)

    def test_bilstm_head_costs_what_it_took(self):
        config = scales.read("small").config("4_128_2")
        flags = scales.read("small").flags("classification")
        tokens = 64 * 5000, 64 * 4000
        plain = costs.finetuning(config, flags, *tokens)
        head = costs.finetuning(config, flags | {"head": "bilstm"}, *tokens)
        seconds = costs.seconds(head, 1) - costs.seconds(plain, 1)
        # On two cores, in benchmarks/results/experiments/small: 481.3 - 97.7.
        actual = 383.6
        self.assertBetween(
            seconds * (os.cpu_count() or 1) / 2 / actual, 0.8, 1.2
        )
        small = {"head": "bilstm", "lstm_size": "128"}
        small = costs.finetuning(config, flags | small, *tokens)
        self.assertBetween(small / plain, 1.1, 2.0)


if __name__ == "__main__":
    tf.test.main()
