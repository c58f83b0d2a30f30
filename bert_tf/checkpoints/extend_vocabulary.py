"""Extends a stored model's vocabulary and its position table.

The embedding of a new word is the mean of the embeddings of its old tokens: the
row of "covid" is the mean of the rows of "co" and "##vid". The word's output
bias in the masked-LM head is the mean of the tokens' biases. Logits are linear
in embedding and bias, so the word's logit is the mean of the tokens' logits.
Other weights and ids do not change, but words may replace [unusedN] tokens.

Words are normalized like text; a word that cannot occur in text is an error.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from bert_tf.checkpoints import convert as conversion
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import CONTINUATION
from bert_tf.text.vocabulary import Vocabulary

_UNUSED = re.compile(r"\[unused\d+\]")
# Normalize "##Ing" as "aIng", because a "##" token never starts a word.
_FRONT = "a"
_SHOWN_ON_SCREEN = 8
_SHOWN_IN_CARD = 100


@dataclasses.dataclass(frozen=True)
class NewTokens:
    """The new tokens in a file of words.

    Attributes:
      source: The file.
      tokens: New token -> ids of the old tokens into which it was split; in the
        order of the file.
      left_out: The line and token of each word that is already in the
        vocabulary or in an earlier line.
    """

    source: str
    tokens: Mapping[str, tuple[int, ...]]
    left_out: tuple[tuple[int, str], ...] = ()


def run(config: Flags) -> None:
    """Extends a model and prints a report.

    Raises:
      UserError: If the model or words cannot be read, a word cannot occur in
        text, or the output cannot be written. Then nothing is written.
    """
    with conversion.locked_output(config) as output:
        source = formats.read(config.input)
        if config.do_lower_case is not None:
            conversion.check_complete(source)
            source = conversion.with_lower_case(source, config.do_lower_case)
        new = NewTokens("", {})
        if path := config.new_words_file:
            tokenizer = source.build_tokenizer()
            new = read_new_tokens(path, "--new_words_file", tokenizer)
        model = extend(
            source, new, config.use_unused, config.max_position_embeddings
        )
        kind = source.task["kind"]
        lines = [f"Read {source.path}: a BERT of kind {kind}."]
        lines += [f"  {note}" for note in source.report.notes]
        shown = _changes(source, model, new, _SHOWN_ON_SCREEN)
        for title, rows in shown.items():
            lines.append(f"{title}:")
            lines += [f"  {name}: {value}" for name, value in rows.items()]
        conversion.print_now(lines)
        card = model_directory.build_card(
            "A BERT with more words or positions",
            f"A BERT of kind {kind}, whose vocabulary or position table was "
            "extended by run/extend_vocabulary.py of bert_tf. The embedding of "
            "a new word is the mean of the embeddings of its old tokens; it "
            "has not been trained since.",
            {
                "Source": {"model": paths.base_names(source.source)},
                "Notes": dict(enumerate(source.report.notes, 1)),
                **_changes(source, model, new, _SHOWN_IN_CARD),
            },
            'import bert_tf\nmodel = bert_tf.load_model(".")',
            model_directory.card_header(source.task, source.source),
        )
        with files.atomic_directory(output) as temporary:
            model_directory.write_model(temporary, model, card)
        conversion.print_now([f"Wrote {config.output}."])


def extend(
    source: StoredModel,
    new: NewTokens = NewTokens("", {}),
    use_unused: bool = True,
    max_position_embeddings: int | None = None,
) -> StoredModel:
    """Adds words to a model's vocabulary, and rows to its tables.

    Args:
      source: The model.
      new: The words, from `read_new_tokens`.
      use_unused: Whether new words first replace the [unusedN] tokens, in the
        order of ids. The remaining words get ids from `vocab_size` on.
      max_position_embeddings: The new length of the position table. If the old
        table has N rows, row i of the new table is the old row i mod N. Outputs
        for texts of up to N tokens do not change.

    Returns:
      The new model. It computes weights on access, and has no optimizer state,
      as new rows have no Adam moments.

    Raises:
      UserError: If `max_position_embeddings` does not lengthen the table.
    """
    config = source.config
    if max_position_embeddings is not None:
        if max_position_embeddings <= config.max_position_embeddings:
            raise UserError(
                "--max_position_embeddings must be greater than that of the "
                f"model, {config.max_position_embeddings}, as tables only "
                f"grow. Received: {max_position_embeddings}."
            )
        config = dataclasses.replace(
            config, max_position_embeddings=max_position_embeddings
        )
    model = dataclasses.replace(
        source, config=config, optimizer_state=Tensors.from_arrays({})
    )
    ids: tuple[int, ...] = ()
    if new.tokens:
        count, first = len(new.tokens), source.config.vocab_size
        unused = _unused_ids(source.vocabulary) if use_unused else []
        ids = (*unused, *range(first, first + count))[:count]
        model = _add_to_vocabulary(model, new, ids)
    weights = _extend_weights(source, model.config, new, ids)
    return dataclasses.replace(model, weights=weights)


def _unused_ids(vocabulary: Vocabulary) -> list[int]:
    tokens = enumerate(vocabulary.tokens)
    return [index for index, token in tokens if _UNUSED.fullmatch(token)]


def _add_to_vocabulary(
    model: StoredModel, new: NewTokens, ids: Sequence[int]
) -> StoredModel:
    # Embeddings may have more rows than tokens: append after the last row.
    tokens = [""] * max(model.config.vocab_size, max(ids) + 1)
    for index in model.vocabulary.token_ids:
        tokens[index] = model.vocabulary.tokens[index]
    for index, token in zip(ids, new.tokens, strict=True):
        tokens[index] = token
    vocabulary = Vocabulary(
        tokens,
        f"{model.vocabulary.source} with the words of {new.source}",
        model.vocabulary.added_tokens,
    )
    return dataclasses.replace(
        model,
        config=dataclasses.replace(model.config, vocab_size=len(vocabulary)),
        vocabulary=vocabulary,
        tokenizer_settings={
            **model.tokenizer_settings,
            "vocabulary_hash": vocabulary.hash,
        },
    )


def _extend_weights(
    source: StoredModel,
    config: BertConfig,
    new: NewTokens,
    ids: Sequence[int],
) -> Tensors:
    """Returns the weights, with the table sizes of `config`.

    The row of each new token is the mean of its old tokens' rows.
    """
    grown = {
        row.name: row
        for row in weight_map.rows(source.config)
        if row.name in source.weights
        and row.shape[0] in ("vocab_size", "max_position_embeddings")
    }
    shapes = {
        name: weight_map.shape_of(row, config) for name, row in grown.items()
    }

    def read(name):
        old = source.weights[name]
        if name not in grown:
            return old
        if grown[name].shape[0] != "vocab_size":
            return old[np.arange(config.max_position_embeddings) % len(old)]
        table = np.empty(shapes[name], old.dtype)
        table[: len(old)] = old
        for index, old_ids in zip(ids, new.tokens.values(), strict=True):
            table[index] = old[list(old_ids)].mean(axis=0, dtype=np.float64)
        return table

    return Tensors({**source.weights.shapes, **shapes}, read)


# === Reading new words ===


def read_new_tokens(
    path: str, flag: str, tokenizer: BertTokenizer
) -> NewTokens:
    r"""Reads new words, one a line, and splits them with the old vocabulary.

    A line that starts with "##" is a token for the rest of a word. `left_out`
    lists repeated words and words that the vocabulary has already.

    Args:
      path: The file, in UTF-8; lines end in \n.
      flag: The flag that gave `path`, for error messages.
      tokenizer: The model's tokenizer.

    Raises:
      UserError: If the file is missing, empty, not UTF-8, starts with a byte
        order mark or has \r\n line ends. If a line is empty, or its word
        cannot occur in text. If the vocabulary already has all words.
    """
    lines = vocabulary_lib.read_lines(path, flag, "word")
    for number, line in enumerate(lines, 1):
        vocabulary_lib.check_line(line, "word", f"{path}, line {number}")
    tokens: dict[str, None] = {}
    left_out = []
    for number, token in enumerate(_normalize(lines, path, tokenizer), 1):
        if token in tokens or token in tokenizer.vocabulary:
            left_out.append((number, token))
        else:
            tokens[token] = None
    if not tokens:
        raise vocabulary_lib.nothing_new(path, len(lines))
    ids = tokenizer.tokenize(list(tokens)).to_list()
    old_ids = {
        token: _split_continuation(token, tokenizer.vocabulary)
        if token.startswith(CONTINUATION)
        else tuple(token_ids)
        for token, token_ids in zip(tokens, ids, strict=True)
    }
    return NewTokens(path, old_ids, tuple(left_out))


def _normalize(
    lines: Sequence[str], path: str, tokenizer: BertTokenizer
) -> list[str]:
    """Returns the lines as vocabulary entries, such as "##ing" for "##Ing"."""
    fronts = [_FRONT if x.startswith(CONTINUATION) else "" for x in lines]
    texts = [
        front + line.removeprefix(CONTINUATION)
        for front, line in zip(fronts, lines, strict=True)
    ]
    rows = tokenizer.split_words(texts).to_list()
    longest = tokenizer.max_input_chars_per_word
    tokens = []
    for number, (line, front, row) in enumerate(
        zip(lines, fronts, rows, strict=True), 1
    ):
        words = [word.decode() for word in row]
        if len(words) != 1 or not len(front) < len(words[0]) <= longest:
            raise UserError(
                f"{path}, line {number}: expected one word of at most "
                f"{longest} characters; white space, punctuation and Chinese "
                f"characters end a word. Received: {line!r}, which no text "
                "would match; leave it out."
            )
        prefix = CONTINUATION if front else ""
        tokens.append(prefix + words[0].removeprefix(front))
    return tokens


def _split_continuation(token: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Splits a "##" token as the rest of a word: "##chain" to "##chai", "##n".

    The tokenizer itself splits only whole words.
    Source: the loop of WordpieceTokenizer (tokenization.py:308-359 of the
    original), without the first round, which takes the start of the word.
    """
    rest = token.removeprefix(CONTINUATION)
    ids = []
    while rest:
        for end in range(len(rest), 0, -1):
            if CONTINUATION + rest[:end] in vocabulary:
                break
        else:
            return (vocabulary.unk_id,)
        ids.append(vocabulary.id(CONTINUATION + rest[:end]))
        rest = rest[end:]
    return tuple(ids)


# === Reports ===


def _changes(
    source: StoredModel, model: StoredModel, new: NewTokens, most: int
) -> dict[str, dict[str, str]]:
    """Returns the report's headings and rows; lists at most `most` words."""
    ids = [model.vocabulary.id(token) for token in new.tokens]
    changes: dict[str, dict[str, str]] = {}
    if ids:
        tokens = source.vocabulary.tokens
        filled = sum(i < source.config.vocab_size for i in ids)
        before = sum(map(len, new.tokens.values())) / len(ids)
        pairs = list(zip(new.tokens.items(), ids, strict=True))
        changes["New words"] = words = {
            "file": os.path.basename(new.source),
            "words": f"{len(ids)}: {filled} on [unusedN] lines "
            f"({len(_unused_ids(model.vocabulary))} such lines left), "
            f"{len(ids) - filled} after the last line",
            "tokens per new word": f"{before:.2f} before, 1 now",
        } | {
            token: f"{' '.join(tokens[x] for x in old_ids)} -> {i}"
            for (token, old_ids), i in pairs[:most]
        }
        if len(pairs) > most:
            words["..."] = f"and {len(pairs) - most} more"
        if new.left_out:
            listed = [f"{x} (line {line})" for line, x in new.left_out[:most]]
            words[f"{len(new.left_out)} left out, known or repeated"] = (
                ", ".join(listed)
            )
    old = source.config.max_position_embeddings
    length = model.config.max_position_embeddings
    if length > old:
        rows = f"{old} became {length}; row i is a copy of i mod {old}"
        changes["Positions"] = {"rows": rows}
    if source.optimizer_state:
        reason = "not carried, as its moments do not fit new tables"
        changes["Optimizer"] = {"state": reason}
    return changes
