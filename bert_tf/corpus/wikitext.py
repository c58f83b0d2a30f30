"""Extraction of paragraphs from wikitext, with the parser mwparserfromhell."""

import posixpath
import re
from collections.abc import Iterator

import mwparserfromhell
from mwparserfromhell import nodes
from mwparserfromhell.wikicode import Wikicode

# These marks cannot occur in a page, because XML forbids control characters.
_NO_TEXT = "\x00"  # Begins a line that is not part of a paragraph.
_BREAK = "\x01"
# Placeholders for characters that are text and not markup, as in <nowiki>.
_LITERALS = dict(zip("'[]{}<|", "\x02\x03\x04\x05\x06\x07\x08", strict=True))
_TO_LITERALS = str.maketrans(_LITERALS)
_FROM_LITERALS = str.maketrans({x: y for y, x in _LITERALS.items()})
_DROPPED_TAGS = frozenset(
    "ref references gallery table math chem ce timeline syntaxhighlight source "
    "score hiero imagemap graph chart mapframe maplink section templatedata "
    "templatestyles inputbox ul ol dl li dd dt hr pre includeonly h1 h2 h3 h4 "
    "h5 h6 categorytree indicator img rss tr td th caption style".split()
)
_BLOCKS = frozenset("p div center blockquote poem".split())
# Matches links to files by their ending. The prefix alone would miss some: the
# dump's header lacks older names of the namespace, such as "Bild".
_FILE = re.compile(
    r"\.(?:jpe?g|png|svg|gif|tiff?|webp|xcf|og[agv]|opus|mp[34]|webm|wav|flac|"
    r"midi?|pdf|djvu|stl)",
    re.IGNORECASE,
)
# Matches text in several scripts, as -{zh-hans:简体;zh-hant:繁體}- (the first
# is kept), and text with MediaWiki's flags, as -{flags|text}-.
_VARIANTS = re.compile(r"-\{(?:([^{}|\n]*)\|)?([^{}\n]*)\}-")
_VARIANT = re.compile(r"\s*(?:[^:;]*=>)?\s*[a-z]{2,3}(?:-[a-z]+)*\s*:")
# A -{...}- with one of these flags shows no text.
_UNSEEN_VARIANTS = frozenset("HT-")
_LANGUAGE_LINK = re.compile(r"simple|[a-z]{2,3}(-[a-z-]+)?")
# Matches unclosed markup, which the parser leaves in the text.
_REMNANTS = re.compile(
    r"<ref\b[^<>\n]*/>|<ref\b[^\n]*?(?:</ref>|$)|<!--.*?(?:-->|\Z)|"
    r"</?[a-zA-Z][^<>\n]*>|__[^\W\d_]\w*?__|\[\[|\]\]|\{\{[^\n]*|\}\}+",
    re.MULTILINE | re.DOTALL,
)
_NOT_TEXT = ("|", "!", "{|", "{{", "}}", "=", _NO_TEXT)
_QUOTES = re.compile("'{2,}")
_BREAKS = re.compile(rf"{_BREAK}(?:\s*{_BREAK})+")
# Matches parentheses that contained only templates, as in "Paris (, ) is".
_EMPTY_PARENTHESES = re.compile(r"\s*\([\s,;:/–—-]*\)|（[\s,;:，；：、]*）")
_AFTER_OPENING = re.compile(r"(?<=\()[\s,;:]+")
_BEFORE_CLOSING = re.compile(r"\s*[,;:]?\s+(?=\))|[,;](?=\))")
_SPACE_BEFORE = re.compile(r"\s+(?=[,.](?:\s|$))")
_SURROGATE = re.compile("[\ud800-\udfff]")


def extract(text: str, hidden: frozenset[str]) -> list[str]:
    """Returns the paragraphs of a page.

    Lists, tables, headers, references, templates, formulas, images, categories
    and markup are left out, and so are parentheses around nothing but
    templates.

    >>> extract("'''Paris''' ({{IPA|x}}) is a [[city|big city]].", frozenset())
    ['Paris is a big city.']

    Args:
      text: The wikitext.
      hidden: Prefixes of links that show no text, in lower case (as "file").
    """
    code = mwparserfromhell.parse(text, skip_style_tags=True)
    plain = "".join(_visible(code, hidden))
    paragraphs, lines = [], []
    for line in [*_remove_remnants(plain).split("\n"), ""]:
        if line.strip() and not line.lstrip(" :").startswith(_NOT_TEXT):
            lines.append(_strip_quotes(line))
        elif lines:
            paragraphs.append(_tidy(" ".join(lines)))
            lines = []
    return [x for x in paragraphs if any(map(str.isalnum, x))]


def _visible(code: Wikicode, hidden: frozenset[str]) -> Iterator[str]:
    """Yields the text that a reader of the page sees, without lists."""
    for node in code.nodes:
        match node:
            case nodes.Text():
                yield node.value
            case nodes.Wikilink():
                yield from _link(node, hidden)
            case nodes.ExternalLink():
                if node.title is not None:
                    yield from _visible(node.title, hidden)
            case nodes.Tag():
                yield from _tag(node, hidden)
            case nodes.HTMLEntity():
                yield node.normalize().translate(_TO_LITERALS)
            case nodes.Heading():
                yield f"\n{_NO_TEXT}\n"


def _link(node: nodes.Wikilink, hidden: frozenset[str]) -> Iterator[str]:
    title = str(node.title).strip()
    prefix, colon, _ = title.partition(":")
    prefix = prefix.strip().lower().replace("_", " ")
    if colon and prefix:
        extension = posixpath.splitext(title)[1]
        if prefix in hidden or _FILE.fullmatch(extension):
            return
        if node.text is None and _LANGUAGE_LINK.fullmatch(prefix):
            return
    if node.text is None:
        yield title.removeprefix(":").translate(_TO_LITERALS)
    else:
        yield from _visible(node.text, hidden)


def _tag(node: nodes.Tag, hidden: frozenset[str]) -> Iterator[str]:
    name = str(node.tag).strip().lower()
    if name == "br":
        yield _BREAK
    elif name == "nowiki":
        # In <nowiki> only entities are markup, so the rest stays as it is.
        text = "".join(_visible(node.contents, hidden)) if node.contents else ""
        yield text.translate(_TO_LITERALS)
    elif node.wiki_markup and name in ("li", "dd", "dt", "hr"):
        yield _NO_TEXT
    elif name == "hr":
        yield f"\n{_NO_TEXT}\n"
    elif name in _BLOCKS:
        yield "\n\n"
        yield from _visible(node.contents, hidden)
        yield "\n\n"
    elif name not in _DROPPED_TAGS and node.contents:
        yield from _visible(node.contents, hidden)


def _remove_remnants(text: str) -> str:
    # Drop lines that start like templates, tables or headings: `_NOT_TEXT`.
    lines = text.split("\n")
    text = "\n".join(
        _NO_TEXT if line.lstrip().startswith(_NOT_TEXT) else line
        for line in lines
    )
    text = _VARIANTS.sub(_first_variant, _REMNANTS.sub("", text))
    return _BREAKS.sub("\n\n", text).replace(_BREAK, " ")


def _first_variant(match: re.Match[str]) -> str:
    """Returns the text of the first script, or "" if no text is shown."""
    flags, body = match.groups()
    if flags and _UNSEEN_VARIANTS & {*flags}:
        return ""
    first = body.split(";")[0]
    return _VARIANT.sub("", first, 1) if _VARIANT.match(first) else body


def _strip_quotes(line: str) -> str:
    """Removes the marks of bold and italic, by MediaWiki's rules.

    >>> _strip_quotes("L'''Iliade'' and '''''both'''''")
    "L'Iliade and both"
    """
    runs = [*_QUOTES.finditer(line)]
    if not runs:
        return line
    literal = []
    for run in runs:
        length = len(run[0])
        literal.append(1 if length == 4 else max(length - 5, 0))
    marks = [len(run[0]) - x for run, x in zip(runs, literal, strict=True)]
    bold = [i for i, length in enumerate(marks) if length in (3, 5)]
    italic = [i for i, length in enumerate(marks) if length in (2, 5)]
    if len(bold) % 2 and len(italic) % 2:
        # MediaWiki splits one ''' into ' and '': the first after a one-letter
        # word, else the first after a longer word, else the first of the line.
        candidates = [i for i in bold if marks[i] == 3]
        if candidates:
            ranks = [_rank(line[: runs[i].start()]) for i in candidates]
            literal[candidates[ranks.index(min(ranks))]] += 1
    pieces, end = [], 0
    for run, count in zip(runs, literal, strict=True):
        pieces += [line[end : run.start()], "'" * count]
        end = run.end()
    return "".join([*pieces, line[end:]])


def _rank(before: str) -> int:
    if before.endswith(" ") or not before:
        return 2
    return 0 if before[-2:-1] in ("", " ") else 1


def _tidy(text: str) -> str:
    text = " ".join(text.split())
    text = _EMPTY_PARENTHESES.sub("", text)
    text = _AFTER_OPENING.sub("", text)
    text = _BEFORE_CLOSING.sub("", text)
    text = _SPACE_BEFORE.sub("", text)
    text = _SURROGATE.sub("", text).replace(_NO_TEXT, "")
    return text.translate(_FROM_LITERALS).strip()
