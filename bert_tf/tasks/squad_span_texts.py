"""From pieces back to the paragraph: which of its characters they stand for."""

from collections.abc import Iterable

from bert_tf.tasks.squad_examples import SquadExample
from bert_tf.tasks.squad_features import InputFeatures
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
        orig_text = " ".join(words)
        tok_text = " ".join(
            filter(None, (self._normalized[word] for word in words))
        )
        pred_text = self._join(window.input_ids[start : end + 1])
        begin, stop = _align(pred_text, orig_text, tok_text)
        starts = example.doc_token_starts[first : last + 1]
        places = [
            begin_of_word + index
            for begin_of_word, word in zip(starts, words, strict=True)
            # With the space behind the word.
            for index in range(len(word) + 1)
        ]
        return orig_text[begin:stop], places[begin], places[stop - 1] + 1

    def _join(self, ids: Iterable[int]) -> str:
        text = " ".join(self._tokens[id] for id in ids)
        text = text.replace(f" {vocabulary_lib.CONTINUATION}", "")
        return " ".join(text.replace(vocabulary_lib.CONTINUATION, "").split())


def _align(pred_text: str, orig_text: str, tok_text: str) -> tuple[int, int]:
    """Returns which characters of the words the prediction is.

    Of "Steve Smith's" the prediction "steve smith" is "Steve Smith". The
    normalized words and the words themselves, without spaces, are laid side by
    side. Where that fails, as they differ in length or the prediction is not
    to be found, the answer is all of the words.

    Source: get_final_text (run_squad.py:927-1020 of the original).

    Args:
      pred_text: The pieces as words.
      orig_text: The words they come from.
      tok_text: Those words, normalized and split at punctuation.

    Returns:
      The first character and, exclusive, the last of `orig_text`.
    """
    everything = (0, len(orig_text))
    start = tok_text.find(pred_text)
    orig_places = _visible(orig_text)
    tok_places = _visible(tok_text)
    if start < 0 or not pred_text or len(orig_places) != len(tok_places):
        return everything
    to_orig = dict(zip(tok_places, orig_places, strict=True))
    end = start + len(pred_text) - 1
    if start not in to_orig or end not in to_orig:
        return everything
    return to_orig[start], to_orig[end] + 1


def _visible(text: str) -> list[int]:
    """Returns where the text has other than spaces."""
    return [place for place, char in enumerate(text) if char != " "]
