r"""Gives a trained model new words, longer texts, or both.

  python run/extend_vocabulary.py --input=uncased_L-12_H-768_A-12 \
      --new_words_file=words.txt --output=output/extended

New words, one a line, take the [unusedN] lines of the vocabulary first, then
lines behind the last; each begins as the mean of the pieces it was split into.
A line such as "##itis" adds a piece that continues words. Every old piece keeps
its id. With --max_position_embeddings=1024 the model reads longer texts; the
new positions begin as copies of the old ones. --output becomes a model
directory, which run/convert_checkpoint.py takes to other formats.
"""

from bert_tf.flags.convert import ExtendVocabularyConfig


def main(config: ExtendVocabularyConfig) -> None:
    # Here, so that --help answers at once.
    from bert_tf.checkpoints import vocabulary_extension

    vocabulary_extension.run(config)
