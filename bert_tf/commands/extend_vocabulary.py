r"""Adds words to a trained model's vocabulary, lengthens its inputs, or both.

  python run/extend_vocabulary.py --input=bert-base-uncased \
      --new_words_file=words.txt --output=output/extended

New words, one a line, replace the [unusedN] lines of the vocabulary first, then
follow the last line; the embedding of each starts as the mean of the tokens
that it was split into. A line such as "##itis" adds a token that continues
words. Every old token keeps its id. With --max_position_embeddings=1024 the
model reads longer texts; the new positions start as copies of the old ones.
--output becomes a model directory, which run/convert_checkpoint.py converts to
other formats.
"""

from bert_tf.flags.convert import ExtendVocabularyConfig


def main(config: ExtendVocabularyConfig) -> None:
    from bert_tf.checkpoints import extend_vocabulary as extension

    extension.run(config)
