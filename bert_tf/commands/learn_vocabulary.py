r"""Learns a WordPiece vocabulary from text files.

A report on it lies beside it: tokens per word, share of [UNK].

  python run/learn_vocabulary.py --input_file='corpus/*.txt.gz' \
      --output_file=data/vocab.txt --vocab_size=30522
"""

from bert_tf.flags.data import LearnVocabularyConfig


def main(config: LearnVocabularyConfig) -> None:
    # Here, so that --help answers at once.
    from bert_tf.data import vocabulary_building

    vocabulary_building.run(config)
