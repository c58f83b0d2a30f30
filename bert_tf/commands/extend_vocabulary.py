r"""Adds words to a trained model's vocabulary, lengthens its inputs, or both.

  python run/extend_vocabulary.py --input=bert-base-uncased \
      --new_words_file=words.txt --output=output/extended

New words, one a line, replace the vocabulary's [unusedN] lines; further words
are added at the end. A new word's embedding starts as the mean embedding of the
tokens that the word was split into. A line such as "##itis" adds a token that
continues words. Old tokens keep their ids. With --max_position_embeddings=1024
the model reads longer texts; the new positions start as copies of the old ones.
--output becomes a model directory; run/convert_checkpoint.py converts these.
"""

import dataclasses
import os

from bert_tf.flags import options
from bert_tf.flags.groups import ConversionConfig


@dataclasses.dataclass(frozen=True)
class ExtendVocabularyConfig(ConversionConfig):
    """Flags of run/extend_vocabulary.py."""

    input: str = options.model(
        "Model to extend: a model directory, or any format that "
        "run/convert_checkpoint.py reads.",
        options.REQUIRED,
        reads="model",
    )
    output: str = options.output("Model directory to write.", options.REQUIRED)
    new_words_file: str | None = options.data(
        "New words, one a line; a line such as ##itis is a token that "
        "continues words.",
        reads="file",
    )
    use_unused: bool = options.model(
        "Store new words in [unusedN] lines first; only the others enlarge "
        "the embedding table.",
        True,
        needs="new_words_file",
    )
    max_position_embeddings: int | None = options.model(
        "New length of the position table; new rows are copies of the old "
        "ones.",
        at_least=1,
    )

    def check(self) -> None:
        super().check()
        options.require(
            self.new_words_file or self.max_position_embeddings,
            "Give --new_words_file, --max_position_embeddings, or both.",
        )


def main(config: ExtendVocabularyConfig) -> None:
    from bert_tf.checkpoints import task_values
    from bert_tf.text import vocabulary as vocabulary_lib

    task_values.check_replaced(config)
    path, file = config.new_words_file, os.path.join(config.input, "vocab.txt")
    if path:
        words = vocabulary_lib.read_lines(path, "--new_words_file", "word")
        if os.path.isfile(file):
            known = vocabulary_lib.read_lines(file, "--input", "token")
            if set(words) <= set(known):
                raise vocabulary_lib.nothing_new(path, len(words))
    from bert_tf.checkpoints import extend_vocabulary as extension

    extension.run(config)
