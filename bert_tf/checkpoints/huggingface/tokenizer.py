"""Reads and writes the files of Hugging Face's BERT tokenizer.

vocab.txt                one wordpiece a line
tokenizer.json           vocabulary, rules; transformers 5 writes no vocab.txt
tokenizer_config.json    class, lower case, accents
special_tokens_map.json  the names of the special tokens
added_tokens.json        tokens beyond the vocabulary, in older versions
"""

import os
from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import task_values
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.task_values import only
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import stored_files
from bert_tf.io.stored_files import FLAG
from bert_tf.io.stored_files import OBJECT
from bert_tf.io.stored_files import choice
from bert_tf.io.stored_files import optional
from bert_tf.text import tokenizer as bert_tokenizer
from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.vocabulary import Vocabulary

VOCAB_FILE = "vocab.txt"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
ADDED_TOKENS_FILE = "added_tokens.json"
_JSON_FILES = (
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    SPECIAL_TOKENS_FILE,
    ADDED_TOKENS_FILE,
)
# File name -> its JSON object, for the files that a directory has.
_Parsed = Mapping[str, Mapping[str, Any]]

_SPECIAL_TOKENS = {
    "pad_token": vocabulary_lib.PAD,
    "unk_token": vocabulary_lib.UNK,
    "cls_token": vocabulary_lib.CLS,
    "sep_token": vocabulary_lib.SEP,
    "mask_token": vocabulary_lib.MASK,
}
_BERT_CLASSES = ("BertTokenizer", "BertTokenizerFast")
# These classes read all rules from tokenizer.json: this file is required.
_GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")

# The rules of `BertTokenizer`; files with other rules are refused.
_IN_SPECIAL_TOKENS = {
    key: stored_files.Kind(
        repr(token),
        lambda x, token=token: (
            (x.get("content") if isinstance(x, dict) else x) in (None, token)
        ),
    )
    for key, token in _SPECIAL_TOKENS.items()
}
_IN_CONFIG = _IN_SPECIAL_TOKENS | {
    "do_lower_case": optional(FLAG),
    "strip_accents": optional(FLAG),
    "tokenize_chinese_chars": only(True),
    "do_basic_tokenize": only(True),
    "never_split": only([]),
}
_IN_TOKENIZER = {
    "model": {
        "type": choice("WordPiece"),
        "continuing_subword_prefix": only(vocabulary_lib.CONTINUATION),
        "unk_token": only(vocabulary_lib.UNK),
    },
    "normalizer": {
        "type": choice("BertNormalizer"),
        "lowercase": optional(FLAG),
        "strip_accents": optional(FLAG),
        "handle_chinese_chars": only(True),
        "clean_text": only(True),
    },
    "pre_tokenizer": {"type": choice("BertPreTokenizer")},
}


def read(
    directory: str, vocab_size: int
) -> tuple[Vocabulary, dict[str, Any], bool, list[str]]:
    """Reads the vocabulary and the settings of a directory's tokenizer.

    The model's word embeddings have `vocab_size` rows.

    Returns:
      The vocabulary, the tokenizer's `settings`, whether lower case had to be
      derived from the vocabulary, and notes for the user.

    Raises:
      UserError: If the directory has no tokenizer of BERT, or the files do not
        fit each other or the model.
    """
    parsed = {
        name: stored_files.read_object(path)
        for name in _JSON_FILES
        if stored_files.exists(path := os.path.join(directory, name))
    }
    _check(directory, parsed)
    vocabulary, notes = _read_vocabulary(directory, parsed, vocab_size)
    lower_case, strip_accents = _settings(directory, parsed, notes)
    is_derived = lower_case is None
    if lower_case is None:
        lower_case = stored_model.note_lower_case(vocabulary, directory, notes)
    model = parsed.get(TOKENIZER_FILE, {}).get("model", {})
    longest = model.get("max_input_chars_per_word")
    if longest is None:
        longest = bert_tokenizer.MAX_CHARS_PER_WORD
    settings = stored_model.tokenizer_settings(
        vocabulary,
        lower_case,
        strip_accents,
        max_input_chars_per_word=longest,
    )
    task_values.check_tokenizer(
        settings, os.path.join(directory, TOKENIZER_FILE)
    )
    return vocabulary, settings, is_derived, notes


def _settings(
    directory: str, parsed: _Parsed, notes: list[str]
) -> tuple[bool | None, bool | None]:
    """Returns `lower_case` and `strip_accents`; None if no file states it."""
    config = parsed.get(TOKENIZER_CONFIG_FILE, {})
    rules = parsed.get(TOKENIZER_FILE, {}).get("normalizer") or {}
    lower_case = rules.get("lowercase")
    strip_accents = rules.get("strip_accents")
    # As in transformers, tokenizer_config.json takes precedence for BERT's
    # classes, but is ignored for generic classes.
    is_generic = config.get("tokenizer_class") in _GENERIC_CLASSES
    if not is_generic and {"do_lower_case", "strip_accents"} & set(config):
        strip_accents = config.get("strip_accents")
        flag = config.get("do_lower_case")
        if lower_case is not None and flag not in (None, lower_case):
            notes.append(
                f"{TOKENIZER_CONFIG_FILE} and {TOKENIZER_FILE} in "
                f"{directory} differ on lower case; the first counts, as in "
                f"Hugging Face: lower_case={flag}."
            )
        lower_case = lower_case if flag is None else flag
    return lower_case, strip_accents


def _check(directory: str, parsed: _Parsed) -> None:
    """Raises `UserError` for an unsupported class, rule or special token."""
    tokenizer = parsed.get(TOKENIZER_FILE)
    classes = _BERT_CLASSES + (_GENERIC_CLASSES if tokenizer else ())
    in_config = _IN_CONFIG | {"tokenizer_class": optional(choice(*classes))}
    for name, schema in (
        (TOKENIZER_CONFIG_FILE, in_config),
        (SPECIAL_TOKENS_FILE, _IN_SPECIAL_TOKENS),
    ):
        path = os.path.join(directory, name)
        stored_files.check(parsed.get(name, {}), schema, path)
    if not tokenizer:
        return
    path = os.path.join(directory, TOKENIZER_FILE)
    parts = dict.fromkeys(_IN_TOKENIZER, OBJECT)
    stored_files.check(tokenizer, parts, path, tuple(parts))
    for part, schema in _IN_TOKENIZER.items():
        stored_files.check(
            tokenizer[part], schema, f"{path}, {part}", ("type",)
        )


def _read_vocabulary(
    directory: str, parsed: _Parsed, vocab_size: int
) -> tuple[Vocabulary, list[str]]:
    stored = {}
    path = os.path.join(directory, VOCAB_FILE)
    if stored_files.exists(path):
        stored[path] = dict(enumerate(Vocabulary.from_file(path).tokens))
    if tokenizer := parsed.get(TOKENIZER_FILE):
        path = os.path.join(directory, TOKENIZER_FILE)
        ids_of = tokenizer["model"].get("vocab")
        stored[path] = _by_id(ids_of, vocab_size, path)
    if not stored:
        raise UserError(
            f"{directory} has no vocabulary of BERT: expected {VOCAB_FILE} or "
            f"{TOKENIZER_FILE} in it."
        )
    source, tokens = next(iter(stored.items()))
    # As in transformers, tokenizer.json has precedence over vocab.txt.
    wordpieces = {*next(reversed(stored.values())).values()}
    added = [
        vocabulary_lib.added_token(i, x["content"] in wordpieces, x)
        for i, x in _added_tokens(directory, parsed, tokens).items()
    ]
    for path, token_of in stored.items():
        for row in added:
            index, token = row["id"], row["content"]
            # A token that no line can hold, such as "\n", is "" in vocab.txt.
            there = token_of[index] = token_of.get(index) or token
            if there != token or not 0 <= index < vocab_size:
                raise UserError(
                    f"{path} has {there!r} at id {index}, where the added "
                    f"token {token!r} belongs; added tokens must be in the "
                    "vocabulary or follow it, within the model's vocab_size="
                    f"{vocab_size}."
                )
    _check_equal(stored, directory)
    notes = []
    # Skip the five special tokens, which `preserve_special_tokens` controls.
    added = [
        row
        for row in added
        if row["content"] not in vocabulary_lib.SPECIAL_TOKENS
    ]
    for row in added:
        if not vocabulary_lib.is_line(row["content"]):
            tokens[row["id"]] = ""
    if added:
        notes.append(
            "Tokens added in transformers, found in texts as there: "
            f"{', '.join(repr(row['content']) for row in added[:8])}"
            f"{', ...' if len(added) > 8 else ''}."
        )
    if spaced := [
        x["content"] for x in added if x["content"].split() != [x["content"]]
    ]:
        notes.append(
            f"Added tokens such as {spaced[0]!r}, which have white space, are "
            "not found in taggers' texts and in contexts of questions, as "
            "words are read one by one there."
        )
    rows = [tokens.get(index, "") for index in range(max(tokens) + 1)]
    vocabulary = Vocabulary(rows, source, added)
    return vocabulary, notes + vocabulary.check_size(vocab_size)


def _by_id(ids_of: Any, vocab_size: int, path: str) -> dict[int, str]:
    """Returns tokenizer.json's tokens by id; transformers 5 may skip ids."""
    pairs = ids_of.items() if isinstance(ids_of, dict) else ()
    token_of = {
        index: token
        for token, index in pairs
        if type(index) is int and 0 <= index < vocab_size
    }
    if not token_of or len(token_of) < len(ids_of):
        raise UserError(
            f"{path} must hold a vocabulary whose ids are whole numbers from 0 "
            f"on, less than the model's vocab_size={vocab_size}, each once."
        )
    return token_of


def _added_tokens(
    directory: str, parsed: _Parsed, tokens: Mapping[int, str]
) -> dict[int, dict[str, Any]]:
    """Returns the added tokens in all files: id to content and flags.

    Source: PreTrainedTokenizerBase._from_pretrained of transformers 4.
    """
    config, in_older_versions, tokenizer = (
        parsed.get(name, {})
        for name in (TOKENIZER_CONFIG_FILE, ADDED_TOKENS_FILE, TOKENIZER_FILE)
    )
    decoder = config.get("added_tokens_decoder") or {}
    try:
        names = _named_tokens(config, parsed.get(SPECIAL_TOKENS_FILE, {}))
        # A token that occurs twice has the id of its last line.
        last = {token: i for i, token in sorted(tokens.items())}
        rows = [(i, names[x]) for x, i in last.items() if x in names]
        rows += [
            (int(i), names.get(token, {"content": token}))
            for token, i in in_older_versions.items()
        ]
        rows += [(int(x["id"]), x) for x in tokenizer.get("added_tokens") or []]
        rows += [(int(i), x) for i, x in decoder.items()]
        pairs = [(i, x["content"]) for i, x in rows]
        if not all(
            stored_files.TEXT.fits(token) and token for _, token in pairs
        ):
            raise ValueError("a content is empty or no text")
        values = {i: {"normalized": not x.get("special")} | x for i, x in rows}
    except (
        AttributeError,
        KeyError,
        OverflowError,
        TypeError,
        ValueError,
    ) as error:
        raise UserError(
            f"The added tokens in {directory} must each have an id and a "
            f"content ({type(error).__name__}: {error})."
        ) from error
    added = {}
    for index, token in sorted(pairs):
        if added.setdefault(index, token) != token:
            raise UserError(
                f"Two added tokens in {directory} have the id {index}: "
                f"{added[index]!r} and {token!r}."
            )
    return dict(sorted(values.items()))


def _named_tokens(*files: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the tokens of keys such as "cls_token": content -> flags."""
    values: list[Any] = []
    for file in files:
        values += [x for key, x in file.items() if key.endswith("_token")]
        for key in ("additional_special_tokens", "extra_special_tokens"):
            named = file.get(key)
            values += named.values() if isinstance(named, dict) else named or []
    rows = [x if isinstance(x, dict) else {"content": x} for x in values]
    return {
        x["content"]: {**x, "special": True}
        for x in rows
        if isinstance(x.get("content"), str)
    }


def _check_equal(
    vocabularies: Mapping[str, Mapping[int, str]], directory: str
) -> None:
    first, *rest = vocabularies.values()
    if rest in ([], [first]):
        return  # The usual case, so skip the slow sorting below.
    # transformers 5 loses lines of white space, and keeps only the last of
    # equal lines. Reduce both vocabularies in this way before comparing them.
    ids = [
        {token: id for id, token in sorted(rows.items()) if token.strip()}
        for rows in vocabularies.values()
    ]
    if different := ids[0].items() ^ ids[-1].items():
        raise UserError(
            f"{VOCAB_FILE} and {TOKENIZER_FILE} in {directory} hold different "
            f"vocabularies, first at id {min(id for _, id in different)}; "
            "remove the one that does not belong to the model."
        )


def write(directory: str, stored: StoredModel) -> None:
    """Writes the files from which AutoTokenizer builds the same tokenizer."""
    vocabulary, settings = stored.vocabulary, stored.tokenizer_settings
    lower_case = settings["lower_case"]
    strip_accents = settings["strip_accents"]
    # If strip_accents equals lower_case, write null, as released models do.
    accents = None if strip_accents == lower_case else strip_accents

    def write_json(name, values):
        files.write_json(os.path.join(directory, name), values)

    write_json(
        TOKENIZER_CONFIG_FILE,
        {
            "do_lower_case": lower_case,
            "model_max_length": stored.config.max_position_embeddings,
            "strip_accents": accents,
            "tokenize_chinese_chars": True,
            "tokenizer_class": _BERT_CLASSES[0],
            **_SPECIAL_TOKENS,
        },
    )
    write_json(SPECIAL_TOKENS_FILE, _SPECIAL_TOKENS)
    write_json(
        TOKENIZER_FILE,
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": _to_added_tokens(vocabulary),
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": accents,
                "lowercase": lower_case,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": _to_post_processor(vocabulary),
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {
                "type": "WordPiece",
                "unk_token": vocabulary_lib.UNK,
                "continuing_subword_prefix": vocabulary_lib.CONTINUATION,
                "max_input_chars_per_word": stored.max_input_chars_per_word,
                "vocab": _to_vocab(vocabulary),
            },
        },
    )
    vocabulary.write(os.path.join(directory, VOCAB_FILE))


def _to_added_tokens(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Returns tokenizer.json's rows for tokens that stay whole, as [MASK]."""
    special = [
        vocabulary_lib.added_token(
            vocabulary.id(token), True, {"content": token, "special": True}
        )
        for token in vocabulary_lib.SPECIAL_TOKENS
    ]
    special.sort(key=lambda row: row["id"])
    return [
        {key: x for key, x in row.items() if key != "is_wordpiece"}
        for row in (*special, *vocabulary.added_tokens)
    ]


def _to_vocab(vocabulary: Vocabulary) -> dict[str, int]:
    """Returns token -> id; omits tokens that were only added, if possible."""
    id_of = {token: index for index, token in enumerate(vocabulary.tokens)}
    added = vocabulary.only_added_ids
    rest = {x: i for x, i in id_of.items() if i not in added}
    # Omit added tokens only if transformers would give them the same ids.
    if added == {*range(len(rest), len(rest) + len(added))}:
        return rest
    return id_of | {x["content"]: x["id"] for x in vocabulary.added_tokens}


def _to_post_processor(vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns the template of [CLS] and [SEP] around one text or two."""

    def special(token, segment):
        return {"SpecialToken": {"id": token, "type_id": segment}}

    def text(name, segment):
        return {"Sequence": {"id": name, "type_id": segment}}

    cls, sep = vocabulary_lib.CLS, vocabulary_lib.SEP
    single = [special(cls, 0), text("A", 0), special(sep, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), special(sep, 1)],
        "special_tokens": {
            token: {
                "id": token,
                "ids": [vocabulary.id(token)],
                "tokens": [token],
            }
            for token in (cls, sep)
        },
    }
