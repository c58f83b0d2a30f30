"""WordPiece tokenization in the graph, with exactly the original's tokens.

One operator of tensorflow_text 2.12 or later normalizes text, and another finds
the wordpieces. Between the two, core TensorFlow operators implement the other
rules of the original. No lookup table or asset is needed. WordPiece takes the
longest token that fits, so "unaffable" becomes un, ##aff, ##able.
"""

import contextlib
import functools
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.config import ASCII_LOWER
from bert_tf.config import ORIGINAL
from bert_tf.config import check_bools
from bert_tf.errors import UserError
from bert_tf.text import added_tokens
from bert_tf.text import normalizer
from bert_tf.text import packing
from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.vocabulary import Vocabulary

# Words above this length become [UNK] (tokenization.py:303 of the original).
MAX_CHARS_PER_WORD = 200
_MAX_BYTES_PER_CHAR = 4
# In MediaPipe, words above this number of bytes become [UNK]
# (kDefaultMaxBytesPerToken in bert_tokenizer.h).
_MAX_BYTES_PER_WORD_ON_DEVICE = 100

# This RE2 class matches one character of a word in normalized text.
_IN_WORD = rf"[^{normalizer.SEPARATORS}{normalizer.SINGLES}]"

# Reserved CJK code points replace special tokens in the text, because every CJK
# character is a word. WordPiece has no token for the code point of [UNK], so it
# turns this code point into [UNK], like any unknown word.
_STAND_INS = {
    vocabulary_lib.UNK: "\U0002ceaa",
    vocabulary_lib.PAD: "\U0002ceab",
    vocabulary_lib.CLS: "\U0002ceac",
    vocabulary_lib.SEP: "\U0002cead",
    vocabulary_lib.MASK: "\U0002ceae",
}


class BertTokenizer(tf.Module):
    """Converts text to ids exactly like the original's FullTokenizer.

    Works eagerly, in `tf.data`, in a `tf.function` and in a SavedModel. Bytes
    that are not UTF-8 are ignored, as in the original. Characters follow
    Unicode 14, as in Python 3.11.

    There is one difference. In the original, NFD sorts adjacent combining marks
    by class. Here, 25 marks of category Mc (Hangul tone marks, some viramas,
    parts of notes), which are no accents, keep their order.

    Tokens added in transformers (`Vocabulary.added_tokens`) are matched by the
    rules of transformers; see `added_tokens`.

    Source: tokenization.py:161-359 of the original.

    Args:
      vocabulary: The vocabulary.
      lower_case: Whether to lower-case the text.
      strip_accents: Whether to strip accents. The default None means true if
        `lower_case` is set and `normalization` is the original's, else false.
      preserve_special_tokens: Whether [PAD], [UNK], [CLS], [SEP] and [MASK] in
        the text become their ids; if not, they are split like other text, as in
        the original. If true, "[SEP]" in untrusted text could end a segment.
      normalization: One of `config.NORMALIZATIONS`. ASCII_LOWER, the rules of
        MediaPipe and the TensorFlow Lite Task Library, needs `lower_case`
        without `strip_accents`.
      max_input_chars_per_word: Longer words become [UNK]. With ASCII_LOWER,
        words of more than 100 bytes become [UNK] instead, as in MediaPipe.

    Example:
      >>> tokenizer = bert_tf.BertTokenizer.from_vocab_file("data/vocab.txt")
      >>> ids, starts, ends = tokenizer.tokenize_with_offsets("The MATCH")
      >>> tokenizer.tokens(ids).numpy().tolist(), starts.numpy().tolist()
      ([b'the', b'match'], [0, 4])
    """

    # False if no operator can rewrite strings, as in TensorFlow Lite.
    _rewrites = True

    def __init__(
        self,
        vocabulary: Vocabulary,
        lower_case: bool = True,
        strip_accents: bool | None = None,
        preserve_special_tokens: bool = False,
        normalization: str = ORIGINAL,
        max_input_chars_per_word: int = MAX_CHARS_PER_WORD,
    ) -> None:
        super().__init__()
        check_bools(
            lower_case=lower_case,
            strip_accents=strip_accents,
            preserve_special_tokens=preserve_special_tokens,
        )
        self.vocabulary = vocabulary
        self.lower_case = lower_case
        self.preserve_special_tokens = preserve_special_tokens
        self.normalization = normalization
        self.max_input_chars_per_word = max_input_chars_per_word
        self._normalizer = normalizer.Normalizer(
            lower_case, strip_accents, normalization, self._rewrites
        )
        self.strip_accents = self._normalizer.strip_accents
        tokens, added = list(vocabulary.tokens), vocabulary.added_tokens
        for token in added:
            tokens[token["id"]] = token["content"]
        # A SavedModel stores eager tensors once, not once per function.
        with tf.init_scope(), tf.device("CPU:0"):
            self._wordpiece = _build_wordpiece(
                vocabulary,
                preserve_special_tokens and not added,
                normalization,
                max_input_chars_per_word,
            )
            self._tokens = tf.constant(tokens)
            if added:
                self._in_text, self._in_normalized = self._build_matchers()

    def __repr__(self) -> str:
        case = "lower case" if self.lower_case else "cased"
        return f"BertTokenizer({len(self.vocabulary)} tokens, {case})"

    @classmethod
    def from_vocab_file(
        cls,
        vocab_file: str,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        preserve_special_tokens: bool = False,
    ) -> "BertTokenizer":
        """Builds a tokenizer from a vocabulary file; see `Vocabulary`."""
        return cls(
            Vocabulary.from_file(vocab_file),
            do_lower_case,
            strip_accents,
            preserve_special_tokens,
        )

    def settings(self) -> dict[str, Any]:
        """Returns all settings of the tokenizer and the vocabulary's hash."""
        return tokenizer_settings(
            self.vocabulary,
            self.lower_case,
            self.strip_accents,
            self.preserve_special_tokens,
            self.normalization,
            self.max_input_chars_per_word,
        )

    def __call__(
        self,
        texts: tf.Tensor | Sequence[str],
        text_pairs: tf.Tensor | Sequence[str | None] | None = None,
        max_seq_length: int = 512,
    ) -> dict[str, tf.Tensor]:
        """Tokenizes and packs texts, or pairs, for a model.

        Args:
          texts: <string>[n].
          text_pairs: <string>[n], or None.
          max_seq_length: The maximum length; longer rows are truncated.

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, <int32>[n, length] each,
          as from `packing.pack`. The longest row, rounded up to a multiple of
          8, gives the length, which is at most `max_seq_length`.
        """
        if isinstance(text_pairs, list | tuple):
            text_pairs = [text or "" for text in text_pairs]
        parts = [texts] if text_pairs is None else [texts, text_pairs]
        tokens = list(map(self.tokenize, parts))
        shape = tokens[0].shape
        if shape.rank != 2 or not shape.is_compatible_with(tokens[-1].shape):
            raise UserError(
                "Expected a list of texts, and as many second texts or None. "
                f"Received: {texts!r:.40} and {text_pairs!r:.40}."
            )
        return packing.pack_to_bucket(
            tokens,
            (*range(8, max_seq_length, 8), max_seq_length),
            self.vocabulary,
        )

    def tokenize(self, text: tf.Tensor | Sequence[str] | str) -> Any:
        """Returns the ids of the text's tokens, without [CLS] and [SEP].

        Args:
          text: <string>[n], or one string.

        Returns:
          Ragged <int32>[n, None]; <int32>[None] for one string.
        """
        if self.vocabulary.added_tokens:
            return self.tokenize_with_offsets(text)[0]
        text, is_scalar = _to_vector(text)
        ids = self._wordpiece.tokenize(
            self._normalizer.normalize(self._prepare(text), self._word_rules())
        )
        return ids[0] if is_scalar else ids

    def tokenize_with_offsets(
        self, text: tf.Tensor | Sequence[str] | str
    ) -> tuple[Any, Any, Any]:
        """Returns ids and the offsets of each token in the text.

        Normalizing the bytes from a token's start to its end gives the token
        (without "##"), or the whole word for [UNK]. If several tokens share
        one character, like the parts of a Hangul syllable when accents are
        stripped, each token spans the whole character. Accents and dropped
        characters belong to the token that they follow.

        Args:
          text: <string>[n], or one string.

        Returns:
          The ids, starts and ends of tokens, each ragged <int32>[n, None], or
          <int32>[None] for one string. Ends are exclusive; offsets count bytes.
        """
        text, is_scalar = _to_vector(text)
        if self.vocabulary.added_tokens:
            ids, starts, ends = self._tokenize_pieces(text)
        else:
            normalized, sources = self._normalizer.normalize_with_offsets(
                self._prepare(text), self._word_rules()
            )
            ids, starts, ends = self._wordpiece.tokenize_with_offsets(
                normalized
            )
            starts, ends = _map_offsets(starts, ends, sources)
        if is_scalar:
            return ids[0], starts[0], ends[0]
        return ids, starts, ends

    def split_words(self, text: tf.Tensor | Sequence[str] | str) -> Any:
        """Returns the normalized words that WordPiece splits into tokens.

        Args:
          text: <string>[n], or one string.

        Returns:
          Ragged <string>[n, None]; <string>[None] for one string.
        """
        text, is_scalar = _to_vector(text)
        if self.vocabulary.added_tokens:
            outer, inner, _ = self._cut(text)
            words = self._normalizer.split_words(inner.between)
            words = inner.join(words, self.tokens(inner.ids))
            words = outer.join(words, self.tokens(outer.ids))
        else:
            normalized = self._normalizer.normalize(self._prepare(text))
            words = self._normalizer.split_words(normalized)
            if self.preserve_special_tokens:
                flat = words.flat_values
                for token, stand_in in _STAND_INS.items():
                    flat = tf.strings.regex_replace(flat, stand_in, token)
                words = words.with_flat_values(flat)
        return words[0] if is_scalar else words

    def tokens(self, ids: Any) -> Any:
        """Returns the tokens of ids, <string> of the same shape."""
        return tf.ragged.map_flat_values(
            lambda flat: tf.gather(self._tokens, flat), ids
        )

    def detokenize(self, ids: Any) -> tf.Tensor:
        """Returns the text <string>[n] of ids <int32>[n, None]."""
        return tf.strings.regex_replace(
            tf.strings.reduce_join(self.tokens(ids), axis=-1, separator=" "),
            f" {vocabulary_lib.CONTINUATION}",
            "",
        )

    def _build_matchers(self) -> list[added_tokens.Matcher]:
        """Returns matchers for raw texts and for normalized texts."""
        # If two tokens have equal text, a special one wins, as in transformers.
        added = sorted(
            self.vocabulary.added_tokens, key=lambda x: not x["special"]
        )
        if self.preserve_special_tokens:
            added += [
                vocabulary_lib.added_token(
                    self.vocabulary.id(token), True, {"content": token}
                )
                for token in vocabulary_lib.SPECIAL_TOKENS
            ]
        matchers = []
        for is_normalized in (False, True):
            rows = [x for x in added if x["normalized"] == is_normalized]
            patterns = tf.constant([x["content"] for x in rows], tf.string)
            if is_normalized:
                patterns = self._normalizer.normalize(patterns)
            patterns = [x.decode() for x in patterns.numpy()]
            matchers.append(added_tokens.Matcher(rows, patterns, is_normalized))
        return matchers

    def _cut(
        self, text: tf.Tensor
    ) -> tuple[added_tokens.Pieces, added_tokens.Pieces, tf.RaggedTensor]:
        """Cuts texts at added tokens, and the normalized text between them.

        Returns the pieces of the text, the pieces of the normalized text, and
        the offset of each normalized byte.
        """
        # `split` marks matches by NULs, so replace NULs in the text by \x01. No
        # token changes, because normalization drops both characters.
        outer = self._in_text.split(
            tf.strings.regex_replace(text, r"\x00", "\1")
        )
        normalized, sources = self._normalizer.normalize_with_offsets(
            outer.between
        )
        return outer, self._in_normalized.split(normalized), sources

    def _tokenize_pieces(
        self, text: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Returns ids, starts and ends of texts <string>[n]."""
        outer, inner, sources = self._cut(text)
        ids, starts, ends = self._wordpiece.tokenize_with_offsets(
            normalizer.apply_rules(inner.between, self._word_rules())
        )
        ids = inner.join(ids, inner.ids)
        starts, ends = _map_offsets(
            inner.join(inner.shift(starts), inner.starts),
            inner.join(inner.shift(ends), inner.ends),
            sources,
        )
        return (
            outer.join(ids, outer.ids),
            outer.join(outer.shift(starts), outer.starts),
            outer.join(outer.shift(ends), outer.ends),
        )

    def _prepare(self, text: tf.Tensor) -> tf.Tensor:
        if self._rewrites:
            text = self._normalizer.cut(text)
        return self._hide_specials(text)

    def _word_rules(self) -> list[normalizer.Rule]:
        # With ASCII_LOWER, WordPiece itself turns long words into [UNK].
        if self.normalization == ASCII_LOWER or not self._rewrites:
            return []
        return [_long_word_rule(self.max_input_chars_per_word)]

    def _hide_specials(self, text: tf.Tensor) -> tf.Tensor:
        """Replaces special tokens by stand-ins, if they are to be preserved.

        NULs, which normalization drops, pad a stand-in to the token's length,
        so that offsets stay valid. "[SEP]" becomes a 4-byte stand-in and a NUL.
        """
        if not self.preserve_special_tokens:
            return text
        # A stand-in in the text itself must not become a special token.
        text = tf.strings.regex_replace(
            text,
            f"[{''.join(_STAND_INS.values())}]",
            _STAND_INS[vocabulary_lib.UNK],
        )
        for token, stand_in in _STAND_INS.items():
            padding = len(token) - len(stand_in.encode())
            text = tf.strings.regex_replace(
                text, re.escape(token), stand_in + "\0" * padding
            )
        return text


def tokenizer_settings(
    vocabulary: Vocabulary,
    lower_case: bool,
    strip_accents: bool | None = None,
    preserve_special_tokens: bool = False,
    normalization: str = ORIGINAL,
    max_input_chars_per_word: int = MAX_CHARS_PER_WORD,
) -> dict[str, Any]:
    """Returns `BertTokenizer.settings`, without building a tokenizer.

    The result has `max_input_chars_per_word` only if the limit is not 200, and
    `added_tokens` only if the vocabulary has added tokens.

    Raises:
      UserError: If the normalization does not support added tokens.
    """
    if vocabulary.added_tokens and normalization != ORIGINAL:
        raise UserError(
            f"Expected normalization={ORIGINAL} for a vocabulary with tokens "
            "added in transformers, which clients with other rules never find. "
            f"Received: {normalization}."
        )
    if strip_accents is None:
        strip_accents = lower_case and normalization == ORIGINAL
    settings = {
        "lower_case": lower_case,
        "strip_accents": strip_accents,
        "preserve_special_tokens": preserve_special_tokens,
        "normalization": normalization,
        "vocabulary_hash": vocabulary.hash,
    }
    if max_input_chars_per_word != MAX_CHARS_PER_WORD:
        settings["max_input_chars_per_word"] = max_input_chars_per_word
    if vocabulary.added_tokens:
        settings["added_tokens"] = list(vocabulary.added_tokens)
    return settings


class LiteTokenizer(BertTokenizer):
    """A tokenizer of operators that TensorFlow Lite can run.

    TensorFlow Lite has the operators of tensorflow_text, but no operator that
    rewrites strings, so two rules differ from `BertTokenizer`:

    * A capital sigma at the end of a word becomes "σ"; Python makes it "ς".
    * Only words of more than `4 * max_input_chars_per_word` bytes become [UNK].
      In the original, words of more than `max_input_chars_per_word` characters
      become [UNK].

    With the rules of MediaPipe (`config.ASCII_LOWER`) the only difference is
    that a NUL does not end the text.

    Only `tokenize` and `tokenize_with_offsets` can be converted.

    Args:
      tokenizer: The tokenizer that the model was trained with.

    Raises:
      UserError: If `tokenizer` preserves special or added tokens in the text.
    """

    _rewrites = False

    def __init__(self, tokenizer: BertTokenizer) -> None:
        kinds = {
            "special tokens such as [MASK]": tokenizer.preserve_special_tokens,
            "added tokens": tokenizer.vocabulary.added_tokens,
        }
        if kept := [kind for kind, is_kept in kinds.items() if is_kept]:
            raise UserError(
                f"The tokenizer of this model keeps {' and '.join(kept)} in "
                "the text whole, but TensorFlow Lite has no operator that "
                "finds them; build with --input=ids."
            )
        super().__init__(
            tokenizer.vocabulary,
            tokenizer.lower_case,
            tokenizer.strip_accents,
            normalization=tokenizer.normalization,
            max_input_chars_per_word=tokenizer.max_input_chars_per_word,
        )


def _to_vector(text: tf.Tensor | Sequence[str] | str) -> tuple[tf.Tensor, bool]:
    """Returns <string>[n] and true if the text was one string."""
    with contextlib.suppress(TypeError, ValueError):
        vector = tf.convert_to_tensor(text, tf.string)
        is_scalar = vector.shape.rank == 0
        if is_scalar or vector.shape.rank == 1:
            return (vector[tf.newaxis] if is_scalar else vector), is_scalar
    raise UserError(
        "`text` must be one string or a vector of strings. Received: "
        f"{text!r:.80}."
    )


def _build_wordpiece(
    vocabulary: Vocabulary,
    preserve_special_tokens: bool,
    normalization: str,
    max_input_chars_per_word: int,
) -> tf_text.FastWordpieceTokenizer:
    # As a character has at most 4 bytes, longer words have too many characters.
    max_bytes_per_word = max_input_chars_per_word * _MAX_BYTES_PER_CHAR
    if normalization == ASCII_LOWER:
        max_bytes_per_word = _MAX_BYTES_PER_WORD_ON_DEVICE
    stand_ins = dict(_STAND_INS) if preserve_special_tokens else {}
    stand_ins.pop(vocabulary_lib.UNK, None)
    # If an id has no token, name it by `no_word` and the id. No word equals the
    # name, because `no_word` is a CJK character, which is always a whole word.
    no_word = _STAND_INS[vocabulary_lib.UNK]
    tokens = [f"{no_word}{i}" for i in range(len(vocabulary))]
    for i in sorted({*vocabulary.token_ids} - vocabulary.only_added_ids):
        tokens[i] = vocabulary.tokens[i]
    if normalization == ORIGINAL:
        tokens = [normalizer.swap_stand_ins(token) for token in tokens]
    try:
        return tf_text.FastWordpieceTokenizer(
            [stand_ins.get(token, token) for token in tokens],
            max_bytes_per_word=max_bytes_per_word,
            token_out_type=tf.int32,
            unknown_token=vocabulary_lib.UNK,
        )
    except RuntimeError as error:  # For example, all tokens are special.
        raise UserError(
            f"{vocabulary.source} must hold wordpieces of texts, too; copy it "
            f"again. Received: {vocabulary.tokens[:8]}."
        ) from error


@functools.cache
def _long_word_rule(most: int) -> normalizer.Rule:
    """Returns a rule that makes words of more than `most` characters unknown.

    With `most` 3, "abcd" becomes NUL + "bcd". No token has a NUL, so the word
    becomes [UNK]. To keep offsets valid, an "ä" would become two NULs.
    """
    too_long = rf"{_IN_WORD}{{{most},}}"
    return normalizer.Rule(
        rf"(?s)(?:.*[{normalizer.SEPARATORS}{normalizer.SINGLES}])?"
        rf"{_IN_WORD}{{{most + 1}}}.*",
        [
            (f"[{chars}]({too_long})", b"\0" * length + rb"\1")
            for length, chars in _word_characters_by_length().items()
        ],
    )


@functools.cache
def _word_characters_by_length() -> dict[int, str]:
    """Returns the RE2 class of the word characters of 1, 2, 3 and 4 bytes."""
    # \x01-\x05 stand for characters of words in normalized text, so list them.
    classes = {1: r"\x01-\x080-9A-Za-z"}
    classes[2] = normalizer.to_class([(0x80, 0x7FF)])
    for length, start, end in ((3, 0x800, 0xFFFF), (4, 0x10000, 0x10FFFF)):
        gaps = []
        for first, last in normalizer.CJK_RANGES:
            if start <= first <= end:
                gaps.append((start, first - 1))
                start = last + 1
        classes[length] = normalizer.to_class([*gaps, (start, end)])
    return classes


def _map_offsets(
    starts: tf.RaggedTensor, ends: tf.RaggedTensor, sources: tf.RaggedTensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Maps offsets into normalized text to offsets into the original.

    `sources` has the original offset of each normalized byte, and of the end.
    If "Ä b" became "a b", `sources` is [0, 2, 3, 4]. The start 0 and the end 1
    of the token "a" become 0 and 2.
    """
    flat = tf.cast(sources.flat_values, tf.int32)
    first_byte = tf.gather(sources.row_starts(), starts.value_rowids())
    start_byte = first_byte + tf.cast(starts.flat_values, tf.int64)
    last_byte = first_byte + tf.cast(ends.flat_values, tf.int64) - 1
    # Bytes made from one character form a run of equal source offsets. A token
    # ends where the next run after its last byte begins; the text's end is a
    # run, too. So number the runs.
    changes = tf.concat([[True], flat[1:] != flat[:-1]], 0)[: tf.size(flat)]
    number = tf.cumsum(tf.cast(changes, tf.int32)) - 1
    source_of_number = tf.boolean_mask(flat, changes)
    next_number = tf.gather(number, last_byte) + 1
    return (
        starts.with_flat_values(tf.gather(flat, start_byte)),
        ends.with_flat_values(tf.gather(source_of_number, next_number)),
    )
