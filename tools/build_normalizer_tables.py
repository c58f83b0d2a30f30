r"""Builds the tables of the normalizer, bert_tf/text/tables/*.xz.

    python tools/build_normalizer_tables.py --nodry_run

The tables follow the Unicode version of the Python that runs this. They are
built once, with Python 3.11 (Unicode 14), so that every machine makes the same
tokens. Rebuild them only for another rule, never for another Unicode version:
a model needs the tokens that it was trained with.
"""

import json
import lzma
import pathlib
import sys
import unicodedata
from collections.abc import Callable
from collections.abc import Iterator

import flatbuffers
import numpy as np
from absl import app
from absl import flags

from bert_tf.config import ASCII_LOWER
from bert_tf.config import ORIGINAL
from bert_tf.text import normalizer

_DRY_RUN = flags.DEFINE_bool("dry_run", True, "Only print what has changed.")

_UNICODE_VERSION = "14.0.0"

# Unicode's White_Space without the characters that RE2's \s matches.
_OTHER_WHITE_SPACE = frozenset(
    "\v\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
    "\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)

# A trie entry's value has this bit, then an offset into the pool, then a length
# in bytes (fast_bert_normalizer.h of tensorflow_text).
_DIFFERS = 0x40000000
_LENGTH_BITS = 6
_LEAF = 0x80000000
_HAS_LEAF = 0x100


def normalize_code_point(
    char: str, lower_case: bool, strip_accents: bool
) -> str:
    """Normalizes one character as BasicTokenizer does.

    Source: tokenization.py:196-297 and 362-399 of the original. The table does
    not split at ASCII punctuation and around CJK characters: the operators that
    run after it do, with their own, fixed sets of characters.
    """
    if char in normalizer.STAND_INS:
        return normalizer.STAND_INS[char]
    category = unicodedata.category(char)
    # str.split() also splits at the line and the paragraph separator.
    if char in "\t\n\r" or category in ("Zs", "Zl", "Zp"):
        return " "
    if char in "\0\ufffd" or category in ("Cc", "Cf"):
        return ""
    if char == normalizer.CAPITAL_SIGMA:
        return char  # Its lower case depends on its neighbors.
    if lower_case:
        char = char.lower()
    if strip_accents:
        char = "".join(
            part
            for part in unicodedata.normalize("NFD", char)
            if unicodedata.category(part) != "Mn"
        )
    return "".join(
        # A line end, not a space: the final sigma rule looks past punctuation
        # but not past spaces.
        f"\n{part}\n"
        if not part.isascii() and unicodedata.category(part)[0] == "P"
        else part
        for part in char
    )


def normalize_code_point_on_device(char: str) -> str:
    r"""Normalizes one character as MediaPipe does; see `normalizer`.

    Source: kDefaultDelimRe of MediaPipe's bert_tokenizer.h; \s is RE2's.
    """
    if char in " \t\n\f\r":
        return " "
    if char.isascii():
        char = char.lower()
    if char in _OTHER_WHITE_SPACE:
        return "\0"
    if not char.isascii() and unicodedata.category(char)[0] == "P":
        return f"\n{char}\n"
    return char


def _invalid_sequences() -> Iterator[bytes]:
    """Yields invalid UTF-8 that the normalizer's operator takes for characters.

    It yields bytes that cannot begin a character, and characters cut off at
    each length. `bytes.decode("utf-8", "ignore")` drops them, too.
    """
    trail = range(0x80, 0xC0)
    for first in range(0x80, 0x100):
        yield bytes([first])
    for first in range(0xE0, 0xF5):
        for second in trail:
            cut = bytes([first, second])
            full = cut + b"\x80" * (1 if first < 0xF0 else 2)
            if not _is_utf8(full):
                continue
            yield cut
            if first >= 0xF0:
                for third in trail:
                    yield cut + bytes([third])


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def build_mapping(normalize: Callable[[str], str]) -> dict[bytes, bytes]:
    """Maps the UTF-8 of each changed character to its normalized UTF-8."""
    mapping = {sequence: b"" for sequence in _invalid_sequences()}
    for code_point in range(1, sys.maxunicode + 1):
        char = chr(code_point)
        if unicodedata.category(char) == "Cs":
            continue
        normalized = normalize(char)
        # TensorFlow Lite needs an entry to map a capital sigma to "σ".
        if normalized != char or char == normalizer.CAPITAL_SIGMA:
            mapping[char.encode()] = normalized.encode()
    return mapping


def _build_pool(strings: set[bytes]) -> tuple[bytes, dict[bytes, int]]:
    """Joins strings, reusing parts: b"ab", b"b" give b"ab", offsets 0, 1."""
    pool = b""
    offsets = {}
    for string in sorted(strings, key=lambda s: (-len(s), s)):
        offset = pool.find(string)
        if offset < 0:
            offset = len(pool)
            pool += string
        offsets[string] = offset
    return pool, offsets


class _DoubleArray:
    """A trie in the Darts-clone format; no key contains a zero byte.

    A unit has 32 bits. A leaf is its value with the top bit set. Any other unit
    has its label in bits 0-7, a flag for a leaf below it in bit 8 and, from bit
    10, the XOR of its position and its children's base. The child along byte c
    is at base ^ c, the leaf at base.
    """

    def __init__(self, values: dict[bytes, int]) -> None:
        self._values = values
        self._children: dict[bytes, set[int]] = {b"": set()}
        for key in values:
            for end in range(len(key)):
                self._children.setdefault(key[:end], set()).add(key[end])
        self._used = np.zeros(1 << 20, bool)
        self._used[0] = True  # The root.
        self._base_used = np.zeros(1 << 20, bool)
        self._first_block = 0
        self._bases = self._choose_bases()

    def _labels(self, node: bytes) -> list[int]:
        leaf = [0] if node in self._values else []
        return leaf + sorted(self._children.get(node, ()))

    def _choose_bases(self) -> dict[bytes, int]:
        nodes = set(self._children) | set(self._values)
        # Place wide nodes first, so that narrow nodes fill the gaps.
        order = sorted(nodes, key=lambda n: (-len(self._labels(n)), n))
        return {node: self._place(self._labels(node)) for node in order}

    def _place(self, labels: list[int]) -> int:
        low = np.arange(256)
        block = self._first_block
        while True:
            start = block * 256
            used = self._used[start : start + 256]
            fits = ~self._base_used[start : start + 256]
            for label in labels:
                fits &= ~used[low ^ label]
            if fits.any():
                base = start + int(np.argmax(fits))
                self._base_used[base] = True
                self._used[[base ^ label for label in labels]] = True
                return base
            if block == self._first_block and used.all():
                self._first_block += 1
            block += 1

    def to_units(self) -> np.ndarray:
        """Returns the trie as <uint32>[multiple of 256]."""
        size = (int(np.nonzero(self._used)[0][-1]) // 256 + 1) * 256
        units = np.zeros(size, np.uint32)
        stack = [(b"", 0, 0)]
        while stack:
            node, position, label = stack.pop()
            base = self._bases[node]
            offset = position ^ base
            if offset >= 1 << 21:
                raise ValueError(f"The trie is too large: offset {offset}.")
            units[position] = offset << 10 | label
            if node in self._values:
                units[position] |= _HAS_LEAF
                units[base] = _LEAF | self._values[node]
            for child in self._children.get(node, ()):
                stack.append((node + bytes([child]), base ^ child, child))
        return units


def build_model(
    lower_case: bool, strip_accents: bool, normalization: str = ORIGINAL
) -> bytes:
    """Returns a FastBertNormalizerModel flatbuffer."""
    if normalization == ASCII_LOWER:
        mapping = build_mapping(normalize_code_point_on_device)
    else:
        mapping = build_mapping(
            lambda char: normalize_code_point(char, lower_case, strip_accents)
        )
    pool, offsets = _build_pool(set(mapping.values()))
    values = {
        key: _DIFFERS | offsets[text] << _LENGTH_BITS | len(text)
        for key, text in mapping.items()
    }
    units = _DoubleArray(values).to_units()
    builder = flatbuffers.Builder(units.nbytes + len(pool) + 256)
    pool_vector = builder.CreateByteVector(pool)
    trie_vector = builder.CreateNumpyVector(units)
    builder.StartObject(4)
    builder.PrependBoolSlot(0, lower_case and strip_accents, False)
    builder.PrependUOffsetTRelativeSlot(1, trie_vector, 0)
    builder.PrependInt32Slot(2, _DIFFERS, 0)  # U+0000 becomes nothing.
    builder.PrependUOffsetTRelativeSlot(3, pool_vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _to_class(chars: list[str]) -> str:
    """Returns the inside of an RE2 character class."""
    ranges: list[list[int]] = []
    for code_point in map(ord, chars):
        if ranges and ranges[-1][1] == code_point - 1:
            ranges[-1][1] = code_point
        else:
            ranges.append([code_point, code_point])
    return normalizer.to_class(ranges)


def build_sigma_context() -> bytes:
    """Returns JSON of the two sets that Python's final sigma rule looks at.

    Python does not export the sets, but `lower` reveals them. A cased character
    makes a capital sigma after it final; a case-ignorable one lets an "A"
    before it do so. A character that is both counts as case-ignorable.
    """
    sigma = normalizer.CAPITAL_SIGMA
    cased, ignorable = [], []
    for char in map(chr, range(sys.maxunicode + 1)):
        if f"{char}{sigma}".lower().endswith("\u03c2"):
            cased.append(char)
        elif f"A{char}{sigma}".lower().endswith("\u03c2"):
            ignorable.append(char)
    context = {
        "cased": _to_class(cased),
        "case_ignorable": _to_class(ignorable),
    }
    return json.dumps(context).encode()


def _write(name: str, contents: bytes) -> None:
    """Packs and writes one table, if it changed and this is no dry run."""
    path = pathlib.Path(normalizer.__file__).parent / "tables" / name
    packed = lzma.compress(contents, preset=9 | lzma.PRESET_EXTREME)
    state = "changed"
    if path.exists() and lzma.decompress(path.read_bytes()) == contents:
        state = "as it was"
    elif not _DRY_RUN.value:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(packed)
        state = "written"
    sys.stdout.write(
        f"{name}: {len(contents)} bytes, {len(packed)} packed, {state}\n"
    )


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    if unicodedata.unidata_version != _UNICODE_VERSION:
        sys.exit(
            f"The tables are of Unicode {_UNICODE_VERSION} (Python 3.11); this "
            f"Python has {unicodedata.unidata_version}."
        )
    _write("sigma_context.json.xz", build_sigma_context())
    _write(
        normalizer.table_name(True, False, ASCII_LOWER),
        build_model(True, False, ASCII_LOWER),
    )
    for lower_case in (False, True):
        for strip_accents in (False, True):
            _write(
                normalizer.table_name(lower_case, strip_accents),
                build_model(lower_case, strip_accents),
            )


if __name__ == "__main__":
    app.run(main)
