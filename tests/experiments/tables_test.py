"""Tests for bert_tf.experiments.tables."""

import dataclasses
import os

import tensorflow as tf

from bert_tf.experiments import report
from bert_tf.experiments import run
from bert_tf.experiments import scales
from bert_tf.experiments import task_folders
from bert_tf.flags.experiments import ExperimentsConfig
from tests.support import experiment_inputs


class SignsTest(tf.test.TestCase):
    def test_expected_signs_are_those_of_the_papers_numbers(self):
        folder = self.create_tempdir().full_path
        config = ExperimentsConfig(
            experiments="table5,table6,table7,table8,figure5",
            corpus=experiment_inputs.write_corpus(folder),
            data_dir=experiment_inputs.write_tasks(folder),
            output_dir=os.path.join(folder, "out"),
            tasks="pairs,names",
        )
        found = task_folders.find_tasks(config.data_dir)
        built = run.prepare(config, scales.read(config.scale), found)
        signs = [
            (table["name"], sign)
            for table in report.build(built.tables, config.output_dir)["tables"]
            for sign in table["signs"]
        ]
        counts = dict.fromkeys((name for name, _ in signs), 0)
        for name, sign in signs:
            if (papers := sign.get("paper_difference")) is not None:
                is_above = sign["expected"] == "above"
                self.assertEqual(papers > 0, is_above, (name, sign))
                counts[name] += 1
        # The smaller size first: its perplexity should be above the other's.
        self.assertEqual(
            [
                (sign["row"], sign["against"])
                for name, sign in signs
                if name == "table6" and sign["expected"] == "above"
            ],
            [
                ("2_64_1", "4_128_2"),
                ("4_64_1", "4_128_2"),
                ("2_128_2", "4_128_2"),
                ("2_64_1", "4_64_1"),
                ("4_64_1", "2_128_2"),
            ],
        )
        # The sizes are others, and Table 5 has no column of names.
        self.assertEqual(
            counts,
            {"table5": 0, "table6": 0, "table7": 6, "table8": 2, "figure5": 1},
        )

    def test_captions_tell_who_pretrained(self):
        folder = self.create_tempdir().full_path
        config = ExperimentsConfig(
            experiments="table1,table7",
            data_dir=experiment_inputs.write_tasks(folder),
            output_dir=os.path.join(folder, "out"),
            pretrained_model_dir=folder,
            tasks="pairs,names",
        )
        corpus = experiment_inputs.write_corpus(folder)
        for with_corpus in (False, True):
            if with_corpus:
                config = dataclasses.replace(
                    config,
                    corpus=corpus,
                    output_dir=os.path.join(folder, "both"),
                )
            scale = scales.read(config.scale)
            found = task_folders.find_tasks(config.data_dir)
            built = run.prepare(config, scale, found).tables
            captions = {table.name: table.scaled_down for table in built}
            both = f"{scale.scaled_down_pretraining} {scale.scaled_down}"
            self.assertEqual(
                captions,
                {
                    "table1": scale.scaled_down,
                    "table7": both if with_corpus else scale.scaled_down,
                },
            )


if __name__ == "__main__":
    tf.test.main()
