"""Filters that judge one document at a time, for worker processes."""

import collections
import dataclasses
import functools
import unicodedata
from typing import Any

from bert_tf import errors
from bert_tf.corpus.documents import Document
from bert_tf.corpus.documents import Dropped
from bert_tf.errors import UserError

EMPTY_DOCUMENT = "empty document"
SHORT_PARAGRAPH = "short paragraph"
FEW_LETTERS = "few letters"
SHORT_DOCUMENT = "short document"
OTHER_LANGUAGE = "other language"
# The start of a document is enough to detect its language.
_LANGUAGE_CHARACTERS = 2000


@dataclasses.dataclass(frozen=True)
class FilterOptions:
    """Flags of the filters, as in `bert_tf.flags.corpus.ExtractTextConfig`.

    Attributes:
      fix_encoding: Whether ftfy repairs text that was decoded wrongly.
      min_paragraph_length: In characters.
      min_letter_share: Of a paragraph's characters that are not spaces.
      min_document_length: In characters, after shorter paragraphs have gone.
      languages: ISO 639-1 codes, separated by commas; None keeps all.
    """

    fix_encoding: bool = False
    min_paragraph_length: int = 0
    min_letter_share: float = 0.0
    min_document_length: int = 0
    languages: str | None = None

    @classmethod
    def from_flags(cls, config: Any) -> "FilterOptions":
        """Returns the fields of the same names.

        Raises:
          UserError: If a language is not one that py3langid has.
        """
        fields = (field.name for field in dataclasses.fields(cls))
        options = cls(**{name: getattr(config, name) for name in fields})
        if options.languages is not None:
            _check_languages(options.languages)
        return options


def clean(
    document: Document, options: FilterOptions
) -> tuple[Document | None, list[Dropped]]:
    """Applies the filters to a document.

    Returns:
      The document with the paragraphs that remain, or None; and what was
      dropped: paragraphs, then perhaps the document.
    """
    paragraphs, dropped = [], []
    for paragraph in document.paragraphs:
        if options.fix_encoding:
            paragraph = fix_encoding(paragraph)
        reason = _find_fault(paragraph, options)
        if reason:
            dropped.append(Dropped(document.id, reason, paragraph))
        elif paragraph:
            paragraphs.append(paragraph)
    text = "\n".join(paragraphs)
    reason = None
    if not text:
        reason = EMPTY_DOCUMENT
    elif sum(map(len, paragraphs)) < options.min_document_length:
        reason = SHORT_DOCUMENT
    elif options.languages and detect_language(
        text
    ) not in options.languages.split(","):
        reason = OTHER_LANGUAGE
    if reason:
        return None, [*dropped, Dropped(document.id, reason, text)]
    return dataclasses.replace(document, paragraphs=tuple(paragraphs)), dropped


def _find_fault(paragraph: str, options: FilterOptions) -> str | None:
    if len(paragraph) < options.min_paragraph_length:
        return SHORT_PARAGRAPH
    if (
        options.min_letter_share
        and letter_share(paragraph) < options.min_letter_share
    ):
        return FEW_LETTERS
    return None


def fix_encoding(paragraph: str) -> str:
    """Returns the text without encoding damage, stripped and in one line.

    Quotation marks, ligatures, HTML entities and the Unicode form, which ftfy
    would also change, stay as they are.

    >>> fix_encoding("Der Himmel ist schÃ¶n, “sehr”")
    'Der Himmel ist schön, “sehr”'
    """
    if paragraph.isascii() and paragraph.isprintable():
        return paragraph.strip()
    fixed = _load_ftfy().fix_text(
        paragraph,
        unescape_html=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        normalization=None,
        explain=False,
    )
    return " ".join(fixed.splitlines()).strip()


def letter_share(text: str) -> float:
    """Returns the share of letters among the characters that are not spaces.

    Marks, such as the vowel signs of Hindi, count as letters.

    >>> letter_share("a 1 b 2")
    0.5
    """
    counts = collections.Counter(text)
    kinds = collections.Counter()
    for character, count in counts.items():
        kinds[_kind(character)] += count
    total = kinds["letter"] + kinds["other"]
    return kinds["letter"] / total if total else 0.0


@functools.lru_cache(maxsize=1 << 16)
def _kind(character: str) -> str:
    if character.isspace():
        return "space"
    return "letter" if unicodedata.category(character)[0] in "LM" else "other"


def detect_language(text: str) -> str:
    """Returns the ISO 639-1 code of the language that py3langid detects.

    >>> detect_language("Der Himmel ist heute besonders blau.")
    'de'
    """
    return _load_identifier().classify(text[:_LANGUAGE_CHARACTERS])[0]


def _check_languages(languages: str) -> None:
    labels = _load_identifier().labels
    unknown = [name for name in languages.split(",") if name not in labels]
    if unknown:
        raise UserError(
            "--languages must be codes that py3langid detects, separated by "
            f"commas: {', '.join(sorted(labels))}. Received: {unknown[0]!r}."
        )


@functools.cache
def _load_identifier() -> Any:
    with errors.extras():
        from py3langid import langid

    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE)


@functools.cache
def _load_ftfy() -> Any:
    with errors.extras():
        import ftfy

    return ftfy
