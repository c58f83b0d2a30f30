"""Normalization in the graph, exactly as the original's BasicTokenizer.

The operator FastBertNormalize of tensorflow_text replaces each character by
what a table says. Its own table is close to the original; ours, built by
tools/build_normalizer_tables.py, is the original: control characters vanish
instead of becoming spaces, "ß" stays, lower-casing and stripping of accents
are apart. Bytes that are not UTF-8 vanish as in
`bytes.decode("utf-8", "ignore")`.

One rule looks at more than one character: a capital sigma at the end of a word
becomes "ς". The table leaves it alone and `_lower_sigma` decides, on text that
is already free of what the original drops before it lower-cases.

A fifth table is that of `config.ASCII_LOWER`, the rules of MediaPipe and of the
TensorFlow Lite Task Library (bert_preprocessor_calculator.cc and
bert_tokenizer.cc of MediaPipe): ASCII becomes lower case, and nothing is
stripped or dropped. Only ASCII white space separates words there; what else the
WordPiece operator takes for white space becomes NUL, which no piece has, so
that the word is unknown as it is to them. Their texts end at a NUL.
"""

import functools
import importlib.resources
import json
import lzma
from collections.abc import Iterable

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.config import ASCII_LOWER
from bert_tf.config import ORIGINAL

CAPITAL_SIGMA = "\u03a3"

# The original's blocks (tokenization.py:274-281), as in the WordPiece operator;
# three that follow each other are one here.
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
    """Returns ranges of code points as the inside of an RE2 class."""
    return "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in ranges)


# What is a word of its own. Other punctuation stands between line ends already.
SINGLES = _ASCII_PUNCTUATION + to_class(CJK_RANGES)

# What normalized text has between words: a space where the text had white
# space, line ends around punctuation.
SEPARATORS = r" \n"


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


def cpu_constant(buffer: bytes) -> tf.Tensor:
    """Returns <uint8>[len(buffer)] beside the operators that read it.

    Made outside any graph, so that a SavedModel holds it once for all its
    functions; on the CPU, where string operators live.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        return tf.constant(np.frombuffer(buffer, np.uint8))


def update_where(
    text: tf.Tensor, pattern: str, rewrites: list[tuple[str, bytes]]
) -> tf.Tensor:
    r"""Rewrites only the strings that match, so that rare rules cost little.

    Args:
      text: <string>[n].
      pattern: RE2; strings that match it as a whole are rewritten.
      rewrites: RE2 and replacement (\1 for groups), applied in this order.

    Returns:
      <string>[n].
    """
    rows = tf.where(tf.strings.regex_full_match(text, pattern))  # [k, 1]
    chosen = tf.gather_nd(text, rows)
    for old, new in rewrites:
        chosen = tf.strings.regex_replace(chosen, old, new)
    return tf.tensor_scatter_nd_update(text, rows, chosen)


class Normalizer(tf.Module):
    """Makes text what WordPiece reads: the original's BasicTokenizer.

    Words are separated by white space in the result, except around CJK
    characters and ASCII punctuation, which the WordPiece operator splits off.

    Args:
      lower_case: Whether to lower-case, by Python's rules.
      strip_accents: Whether to decompose (NFD) and drop accents (Mn).
      normalization: One of `config.NORMALIZATIONS`; ASCII_LOWER needs
        `lower_case` without `strip_accents`.
    """

    def __init__(
        self,
        lower_case: bool,
        strip_accents: bool,
        normalization: str = ORIGINAL,
    ) -> None:
        super().__init__()
        if normalization == ASCII_LOWER and (strip_accents or not lower_case):
            raise ValueError(
                f"{ASCII_LOWER} lower-cases and strips no accents. Received: "
                f"lower_case={lower_case}, strip_accents={strip_accents}."
            )
        self._is_original = normalization == ORIGINAL
        self._lower_case = lower_case
        table = read_table(table_name(lower_case, strip_accents, normalization))
        self._normalizer = tf_text.FastBertNormalizer(
            model_buffer=cpu_constant(table)
        )

    def cut(self, text: tf.Tensor) -> tf.Tensor:
        """Returns what of texts is read at all, <string>[n] for <string>[n]."""
        if self._is_original:
            return text
        return tf.strings.regex_replace(text, r"\x00\C*", "")

    def normalize(self, text: tf.Tensor) -> tf.Tensor:
        """Returns normalized text, <string>[n] for <string>[n]."""
        return self._lower_sigma(self._normalizer.normalize(text))

    def normalize_with_offsets(
        self, text: tf.Tensor
    ) -> tuple[tf.Tensor, tf.RaggedTensor]:
        """Normalizes and says where each byte comes from.

        Args:
          text: <string>[n].

        Returns:
          <string>[n] and <int64>[n, None]: for each byte of the result, and
          for its end, the byte of the text that begins the character it was
          made from.
        """
        normalized, offsets = self._normalizer.normalize_with_offsets(text)
        # Keeps the length of every string, so the offsets hold.
        return self._lower_sigma(normalized), offsets

    def split_words(self, normalized: tf.Tensor) -> tf.RaggedTensor:
        """Splits normalized text into words, <string>[n, None]."""
        spaced = tf.strings.regex_replace(normalized, f"([{SINGLES}])", r" \1 ")
        return tf.strings.split(spaced)

    def _lower_sigma(self, text: tf.Tensor) -> tf.Tensor:
        if not (self._lower_case and self._is_original):
            return text
        return update_where(
            text,
            f"(?s).*{CAPITAL_SIGMA}.*",
            [(_final_sigma_pattern(), r"\1ς\2"), (CAPITAL_SIGMA, "σ")],
        )


@functools.cache
def _final_sigma_pattern() -> str:
    """Returns RE2 for a capital sigma that Python lower-cases to "ς".

    In front of it stands a cased letter, behind it none, looking past
    case-ignorable characters (Unicode, table 3-17, Final_Sigma). So it is the
    last cased letter, and not the first, of a run of cased and ignorable ones;
    taking the run as a whole spares RE2 the look-around it does not have.
    """
    context = json.loads(read_table("sigma_context.json.xz"))
    cased = context["cased"]
    # Line ends stand around punctuation, where the original sees nothing yet.
    ignorable = rf"\n{context['case_ignorable']}"
    return (
        f"([{cased}][{cased}{ignorable}]*){CAPITAL_SIGMA}"
        f"([{ignorable}]*(?:[^{cased}{ignorable}]|$))"
    )
