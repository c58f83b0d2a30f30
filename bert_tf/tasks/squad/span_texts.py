"""From pieces back to the paragraph: which of its characters they stand for."""

from collections.abc import Iterable
from collections.abc import Sequence

from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.tasks.squad.features import InputFeatures
from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.tokenizer import BertTokenizer


class SpanTexts:
    """Finds what the pieces of a span are in the paragraph.

    Args:
      tokenizer: The one that made the pieces.
      words: All words of the paragraphs, any number of times.
    """

    def __init__(self, tokenizer: BertTokenizer, words: Iterable[str]) -> None:
        self._tokens = tokenizer.vocabulary.tokens
        # The original normalizes span by span. It comes to the same, as words
        # are normalized each by itself, and only all at once it is fast.
        unique = list(dict.fromkeys(words))
        normalized = tokenizer.split_words(unique).to_list()
        self._normalized = {
            word: b" ".join(parts).decode("utf-8")
            for word, parts in zip(unique, normalized, strict=True)
        }

    def find(
        self, example: SquadExample, window: InputFeatures, start: int, end: int
    ) -> tuple[str, int, int]:
        """Returns the text of a span and where it stands in the paragraph.

        White space between words is one space in the text, whatever it is in
        the paragraph.

        Args:
          example: The question with the paragraph.
          window: The window.
          start: The span's first piece.
          end: Its last.

        Returns:
          The text; its first character and, exclusive, its last, in characters
          of the paragraph.
        """
        first = int(window.word_indices[start - window.doc_offset])
        last = int(window.word_indices[end - window.doc_offset])
        words = example.doc_tokens[first : last + 1]
        tok_text = " ".join(
            filter(None, [self._normalized[word] for word in words])
        )
        chars = _align(
            self._join(window.input_ids[start : end + 1].tolist()),
            tok_text,
            sum(map(len, words)),
        )
        (begin, begin_char), (stop, stop_char) = (
            _find_char(words, char) for char in chars
        )
        text = " ".join(words[begin : stop + 1])
        cut = len(words[stop]) - stop_char - 1
        starts = example.doc_token_starts
        return (
            text[begin_char : len(text) - cut],
            starts[first + begin] + begin_char,
            starts[first + stop] + stop_char + 1,
        )

    def _join(self, ids: Iterable[int]) -> str:
        text = " ".join([self._tokens[id] for id in ids])
        text = text.replace(f" {vocabulary_lib.CONTINUATION}", "")
        return " ".join(text.replace(vocabulary_lib.CONTINUATION, "").split())


def _align(pred_text: str, tok_text: str, num_chars: int) -> tuple[int, int]:
    """Returns which characters of the words, without spaces, are predicted.

    Of "Steve Smith's" the prediction "steve smith" is "Steve Smith". The
    normalized words and the words themselves, without spaces, are laid side by
    side. Where that fails, as they differ in length or the prediction is not
    to be found, the answer is all of the words.

    Source: get_final_text (run_squad.py:927-1020 of the original).

    Args:
      pred_text: The pieces as words.
      tok_text: The paragraph's words, normalized and split at punctuation.
      num_chars: How many characters the paragraph's words have.

    Returns:
      The first and the last character.
    """
    start = tok_text.find(pred_text)
    num_tok_chars = len(tok_text) - tok_text.count(" ")
    if start < 0 or not pred_text or num_chars != num_tok_chars:
        return 0, num_chars - 1
    first = start - tok_text.count(" ", 0, start)
    return first, first + len(pred_text) - pred_text.count(" ") - 1


def _find_char(words: Sequence[str], char: int) -> tuple[int, int]:
    """Returns which word has the n-th character, and where in it."""
    for index, word in enumerate(words):
        if char < len(word):
            return index, char
        char -= len(word)
    raise IndexError(f"The words end {char} characters before.")
