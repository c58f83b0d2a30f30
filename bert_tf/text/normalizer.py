"""Text normalization in the graph, exactly like the original's BasicTokenizer.

The operator FastBertNormalize of tensorflow_text replaces each character by a
table lookup. The operator's default table only approximates the original. Our
tables, built by tools/build_normalizer_tables.py, equal the original. For
example, control characters vanish instead of becoming spaces, "ß" stays, and
lower-casing and accent stripping are separate. Bytes that are not UTF-8 vanish,
as with errors="ignore" in Python.

A capital sigma becomes "ς" at the end of a word, and "σ" elsewhere. A table
cannot find the end of a word, so it keeps the sigma, and a `Rule` then replaces
the sigma. As in the original, the table drops some characters first, so they
cannot hide the end of a word. TensorFlow Lite has no operators for a `Rule`, so
for TensorFlow Lite the table itself can lower-case the sigma.

A fifth table implements `config.ASCII_LOWER`, the rules of MediaPipe and of the
TensorFlow Lite Task Library (bert_preprocessor_calculator.cc and
bert_tokenizer.cc of MediaPipe): ASCII becomes lower case, nothing is stripped
or dropped, and the text is cut at its first NUL. Only ASCII white space
separates words. The WordPiece operator would also split at other white space,
so the table turns other white space into NULs. No token has a NUL, so a word
with a NUL is [UNK].
"""

import functools
import importlib.resources
import json
import lzma
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.config import ASCII_LOWER
from bert_tf.config import ORIGINAL

CAPITAL_SIGMA = "\u03a3"

# The original (tokenization.py:274-281) and the WordPiece operator make each
# character of these Chinese blocks a word. Here, adjacent blocks are joined.
CJK_RANGES = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
_ASCII_PUNCTUATION = r"!-/:-@\[-`{-~"


def to_class(ranges: Iterable[tuple[int, int]]) -> str:
    """Formats ranges of code points as the inside of an RE2 class."""
    return "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in ranges)


# WordPiece splits off each of these characters as a word. Other punctuation is
# not among them, because the normalizer puts line ends around it.
SINGLES = _ASCII_PUNCTUATION + to_class(CJK_RANGES)

# Normalized text separates words by spaces, and by line ends at punctuation.
SEPARATORS = r" \n"


# WordPiece of tensorflow_text 2.20 splits off these characters, as they are
# punctuation since Unicode 15 or later. In the original (Unicode 14) they are
# part of a word, so `STAND_INS` hides them from WordPiece.
_NEWER_PUNCTUATION = (
    (0x1B4E, 0x1B4F),
    (0x1B7F, 0x1B7F),
    (0x10D6E, 0x10D6E),
    (0x113D4, 0x113D5),
    (0x113D7, 0x113D8),
    (0x11B00, 0x11B09),
    (0x11BE1, 0x11BE1),
    (0x11F43, 0x11F4F),
    (0x16D6D, 0x16D6F),
    (0x1E5FF, 0x1E5FF),
)
# Normalized text has no control characters, so these can be stand-ins. Like the
# hidden characters, none of these is cased, case-ignorable or white space.
_FREE = ((0x80, 0x84), (0x86, 0x9F), (0x01, 0x05))


def _characters(ranges: Iterable[tuple[int, int]]) -> Iterator[str]:
    for first, last in ranges:
        yield from map(chr, range(first, last + 1))


# Maps each character of `_NEWER_PUNCTUATION` to the stand-in that hides it.
STAND_INS = dict(
    zip(_characters(_NEWER_PUNCTUATION), _characters(_FREE), strict=True)
)
_SWAPPED = str.maketrans(STAND_INS | {y: x for x, y in STAND_INS.items()})


def table_name(
    lower_case: bool, strip_accents: bool, normalization: str = ORIGINAL
) -> str:
    """Returns the file name of one of the five tables."""
    if normalization == ASCII_LOWER:
        return f"{ASCII_LOWER}.xz"
    case = "uncased" if lower_case else "cased"
    accents = "strip" if strip_accents else "keep"
    return f"{case}_{accents}_accents.xz"


def read_table(name: str) -> bytes:
    """Returns the unpacked contents of a file in bert_tf/text/tables."""
    tables = importlib.resources.files("bert_tf.text") / "tables"
    return lzma.decompress((tables / name).read_bytes())


def swap_stand_ins(token: str) -> str:
    """Returns a token as it appears in normalized text.

    A stand-in in the token itself becomes the character that it stands for.
    Normalized text never has that character, so no text matches the token.
    """
    if token.isascii() and token.isprintable():
        return token  # Most tokens have no stand-in.
    return token.translate(_SWAPPED)


class Rule(NamedTuple):
    """Replacements for characters that few texts have.

    Attributes:
      pattern: RE2 that fully matches each text that the rule may change.
      rewrites: Pairs of RE2 and replacement, applied in this order. They must
        not change a text that `pattern` does not match.
    """

    pattern: str
    rewrites: Sequence[tuple[str, bytes | str]]


def apply_rules(text: tf.Tensor, rules: Sequence[Rule]) -> tf.Tensor:
    """Applies rules in order, <string>[n].

    One scan finds the texts to change, so common text costs only the scan.
    """
    if not rules:
        return text

    def rewrite(chosen):
        for rule in rules:
            for old, new in rule.rewrites:
                chosen = tf.strings.regex_replace(chosen, old, new)
        return chosen

    pattern = "|".join(f"(?:{rule.pattern})" for rule in rules)
    return _apply_where(text, pattern, rewrite)


def _apply_where(
    text: tf.Tensor, pattern: str, function: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Applies a function to the strings that match a pattern as a whole."""
    rows = tf.where(tf.strings.regex_full_match(text, pattern))  # [k, 1]
    chosen = function(tf.gather_nd(text, rows))
    return tf.tensor_scatter_nd_update(text, rows, chosen)


def _restore(normalized: tf.Tensor) -> tf.Tensor:
    """Replaces stand-ins by the characters that they hide, <string>[n]."""
    last = max(map(ord, STAND_INS.values()))
    originals = np.arange(last + 1, dtype=np.int32)
    for char, stand_in in STAND_INS.items():
        originals[ord(stand_in)] = ord(char)

    def restore(text):
        codes = tf.strings.unicode_decode(text, "UTF-8")
        flat = codes.flat_values
        flat = tf.where(
            flat > last, flat, tf.gather(originals, tf.minimum(flat, last))
        )
        return tf.strings.unicode_encode(codes.with_flat_values(flat), "UTF-8")

    return _apply_where(normalized, f"(?s).*[{to_class(_FREE)}].*", restore)


class Normalizer(tf.Module):
    """Normalizes text for WordPiece, like the original's BasicTokenizer.

    The result has white space between words, except around CJK characters and
    ASCII punctuation, which the WordPiece operator splits off.

    Args:
      lower_case: Whether to lower-case, by Python's rules.
      strip_accents: Whether to decompose (NFD) and drop accents (Mn). None
        means true if `lower_case` is set and `normalization` is the original's.
      normalization: One of `config.NORMALIZATIONS`; ASCII_LOWER needs
        `lower_case` without `strip_accents`.
      final_sigma: Whether a capital sigma at the end of a word becomes "ς".
        If false, `normalize` and `normalize_with_offsets` each need only one
        operator, which TensorFlow Lite supports.
    """

    def __init__(
        self,
        lower_case: bool,
        strip_accents: bool | None,
        normalization: str = ORIGINAL,
        final_sigma: bool = True,
    ) -> None:
        super().__init__()
        self._is_original = normalization == ORIGINAL
        if strip_accents is None:
            strip_accents = lower_case and self._is_original
        self.strip_accents = strip_accents
        if normalization == ASCII_LOWER and (strip_accents or not lower_case):
            raise ValueError(
                f"{ASCII_LOWER} lower-cases and strips no accents. Received: "
                f"lower_case={lower_case}, strip_accents={strip_accents}."
            )
        lowers_sigma = lower_case and self._is_original
        self._rules = []
        if lowers_sigma and final_sigma:
            rule = [(_final_sigma_pattern(), r"\1ς\2"), (CAPITAL_SIGMA, "σ")]
            self._rules.append(Rule(f"(?s).*{CAPITAL_SIGMA}.*", rule))
        table = read_table(table_name(lower_case, strip_accents, normalization))
        if lowers_sigma and not final_sigma:
            # Map every capital sigma to "σ", not to itself. Change the last
            # sigma: earlier bytes may equal a sigma by chance.
            head, _, tail = table.rpartition(CAPITAL_SIGMA.encode())
            table = head + "σ".encode() + tail
        # A SavedModel stores an eager constant once for all functions. The
        # string operators that read the constant run on the CPU, too.
        with tf.init_scope(), tf.device("CPU:0"):
            buffer = tf.constant(np.frombuffer(table, np.uint8))
        self._normalizer = tf_text.FastBertNormalizer(model_buffer=buffer)

    def cut(self, text: tf.Tensor) -> tf.Tensor:
        """Cuts texts at the first NUL for ASCII_LOWER, <string>[n]."""
        if self._is_original:
            return text
        return tf.strings.regex_replace(text, r"\x00\C*", "")

    def normalize(
        self, text: tf.Tensor, rules: Sequence[Rule] = ()
    ) -> tf.Tensor:
        """Returns normalized text, <string>[n] for <string>[n].

        `rules` are applied to the normalized text; see `apply_rules`.
        """
        normalized = self._normalizer.normalize(text)
        return apply_rules(normalized, [*self._rules, *rules])

    def normalize_with_offsets(
        self, text: tf.Tensor, rules: Sequence[Rule] = ()
    ) -> tuple[tf.Tensor, tf.RaggedTensor]:
        """Normalizes text and maps each byte to its source.

        Args:
          text: <string>[n].
          rules: As for `normalize`; no rule may change the length of a string.

        Returns:
          The normalized text <string>[n], and offsets <int64>[n, None]: for
          each normalized byte, the first byte of its source character; and one
          more offset, for the end of the text.
        """
        normalized, offsets = self._normalizer.normalize_with_offsets(text)
        return apply_rules(normalized, [*self._rules, *rules]), offsets

    def split_words(self, normalized: tf.Tensor) -> tf.RaggedTensor:
        """Splits normalized text into words, <string>[n, None]."""
        if self._is_original:
            normalized = _restore(normalized)
        spaced = tf.strings.regex_replace(normalized, f"([{SINGLES}])", r" \1 ")
        return tf.strings.split(spaced)


@functools.cache
def _final_sigma_pattern() -> str:
    """Returns RE2 for a capital sigma that Python lower-cases to "ς".

    Python writes "ς" after a cased letter, unless another cased letter follows.
    Case-ignorable characters between these letters and the sigma do not matter
    (Unicode, table 3-17, Final_Sigma). So the sigma of "ΟΔΟΣ" becomes "ς"; the
    sigma of "ΣΟΦΙΑ" and a sigma alone become "σ".
    RE2 has no look-around, so the pattern also matches the letters before the
    sigma and the characters after it.
    """
    context = json.loads(read_table("sigma_context.json.xz"))
    cased = context["cased"]
    # Ignore line ends at punctuation: the original lower-cases, then splits.
    ignorable = rf"\n{context['case_ignorable']}"
    return (
        f"([{cased}][{cased}{ignorable}]*){CAPITAL_SIGMA}"
        f"([{ignorable}]*(?:[^{cased}{ignorable}]|$))"
    )
