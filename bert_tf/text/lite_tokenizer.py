"""The tokenizer of operators that TensorFlow Lite can run."""

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.text import normalizer
from bert_tf.text.tokenizer import BertTokenizer


class LiteTokenizer(BertTokenizer):
    """Turns text into ids as `BertTokenizer` does, but for two rules.

    Of the operators of tensorflow_text those that it needs run in TensorFlow
    Lite; those that rewrite strings do not. So

    * a capital sigma at the end of a word becomes "σ", as it does elsewhere,
      where Python makes "ς" of it, and
    * words of more than 200 characters are cut into pieces like others, where
      the original makes [UNK] of them; those of more than 800 bytes become
      [UNK] here, too.

    By the rules of MediaPipe (`config.ASCII_LOWER`) neither is one, but there
    texts end at a NUL, which is no end here.

    `tokenize` and `tokenize_with_offsets` can be converted, the others not.

    Args:
      tokenizer: The one that the model was trained with.

    Raises:
      UserError: If it keeps special tokens that are typed in the text.
    """

    def __init__(self, tokenizer: BertTokenizer) -> None:
        if tokenizer.preserve_special_tokens:
            raise UserError(
                "A .tflite file that takes text has no operator that finds "
                "[MASK] and its like in it, which the tokenizer of this model "
                "keeps whole (preserve_special_tokens); build with "
                "--input=ids."
            )
        super().__init__(
            tokenizer.vocabulary,
            tokenizer.lower_case,
            tokenizer.strip_accents,
            normalization=tokenizer.normalization,
        )

    def _build_normalizer(self) -> normalizer.Normalizer:
        return normalizer.Normalizer(
            self.lower_case,
            self.strip_accents,
            self.normalization,
            final_sigma=False,
        )

    def _prepare(self, text: tf.Tensor) -> tf.Tensor:
        return text

    def _mark_long_words(self, normalized: tf.Tensor) -> tf.Tensor:
        return normalized
