r"""Learns a WordPiece vocabulary from text files.

A report with tokens per word and the share of [UNK] is written next to it.

  python run/learn_vocabulary.py --input_file='corpus/*.txt.gz' \
      --output_file=data/vocab.txt --vocab_size=30522
"""

from bert_tf.flags.data import LearnVocabularyConfig


def main(config: LearnVocabularyConfig) -> None:
    from bert_tf.data import vocabulary_building

    vocabulary_building.run(config)
