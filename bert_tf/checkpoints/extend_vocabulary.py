"""Extends a stored model's vocabulary and its position table.

The embedding of a new word is the mean of the embeddings of its old tokens. So
is its output bias in the masked-LM head: as the head's logits are linear in
embedding and bias, the new word's logit is the mean of its tokens' logits. All
other weights stay exactly as they are, and every old token keeps its id.
"""

import dataclasses
import os
import re
from collections.abc import Sequence

import numpy as np

from bert_tf.checkpoints import convert as conversion
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints import new_tokens
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.new_tokens import NewToken
from bert_tf.checkpoints.new_tokens import NewTokens
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.flags.options import Flags
from bert_tf.text.vocabulary import Vocabulary

_UNUSED = re.compile(r"\[unused\d+\]")
_SHOWN_ON_SCREEN = 8
_SHOWN_IN_CARD = 100
_STATE_NOT_CARRIED = (
    "The optimizer's state is not carried over: its moments do not fit tables "
    "that grew, so training continues with new ones."
)


@dataclasses.dataclass(frozen=True)
class Extension:
    """An extended model, its source, the new tokens and the id of each."""

    model: StoredModel
    source: StoredModel
    new: NewTokens
    ids: tuple[int, ...]

    @property
    def num_filled(self) -> int:
        """Number of new tokens that replace [unusedN] lines."""
        return sum(x < self.source.config.vocab_size for x in self.ids)

    @property
    def num_unused_left(self) -> int:
        """Number of [unusedN] lines that remain."""
        return len(_unused_ids(self.model.vocabulary))


def run(config: Flags) -> None:
    """Extends a model and prints a report.

    Raises:
      UserError: If the model or the words cannot be read, no text could match
        a word, or the output cannot be written; then nothing is written.
    """
    with conversion.locked_output(config) as output:
        _run(config, output)


def _run(config: Flags, output: str) -> None:
    """Writes the extended model to a locked output, and prints a report."""
    source_format = formats.detect(config.input)
    source = formats.read(config.input, source_format)
    if config.do_lower_case is not None:
        conversion.check_complete(source)
        source = conversion.with_lower_case(source, config.do_lower_case)
    conversion.print_now(_describe_source(source, source_format))
    extension = extend(
        source,
        config.new_words_file
        and read_new_tokens(config.new_words_file, "--new_words_file", source),
        config.use_unused,
        config.max_position_embeddings,
    )
    conversion.print_now(_describe(extension))
    card = _build_card(config, extension)
    with conversion.writing(output, config.output) as temporary:
        model_directory.write_model(temporary, extension.model, readme=card)
    conversion.print_now(f"Wrote {config.output}.\n")


def extend(
    source: StoredModel,
    new: NewTokens | None = None,
    use_unused: bool = True,
    max_position_embeddings: int | None = None,
) -> Extension:
    """Adds words to a model's vocabulary, and rows to its tables.

    Args:
      source: The model.
      new: The words, from `read_new_tokens`.
      use_unused: Whether they first replace the [unusedN] lines, in the order
        of their ids. The others follow after the last line.
      max_position_embeddings: The new length of the position table: row i is
        a copy of row i mod the old length, so that outputs for texts of up to
        the old length do not change.

    Returns:
      The model, whose weights are computed when they are read. It has no
      optimizer state, as there are no moments for new rows.

    Raises:
      UserError: If no text could match a word, or the position table is as
        long already.
    """
    config = source.config
    if max_position_embeddings is not None:
        _check_positions(config, max_position_embeddings)
        config = dataclasses.replace(
            config, max_position_embeddings=max_position_embeddings
        )
    model = dataclasses.replace(
        source, config=config, optimizer_state=Tensors.from_arrays({})
    )
    new = new or NewTokens("", ())
    ids: tuple[int, ...] = ()
    if new.tokens:
        ids = _assign_ids(new, source, use_unused)
        model = _add_to_vocabulary(model, new, ids)
        new_tokens.check_matched(new, model.build_tokenizer())
    model = dataclasses.replace(
        model, weights=_extend_weights(source, model.config, new, ids)
    )
    return Extension(model, source, new, ids)


def read_new_tokens(path: str, flag: str, source: StoredModel) -> NewTokens:
    """Reads new words for a model; see `new_tokens.read`."""
    return new_tokens.read(path, flag, source.build_tokenizer())


def _check_positions(config: BertConfig, length: int) -> None:
    if length <= config.max_position_embeddings:
        raise UserError(
            "--max_position_embeddings must be greater than that of the model, "
            f"{config.max_position_embeddings}, as tables only grow. Received: "
            f"{length}."
        )


def _unused_ids(vocabulary: Vocabulary | None) -> list[int]:
    tokens = vocabulary.tokens if vocabulary else ()
    return [i for i, token in enumerate(tokens) if _UNUSED.fullmatch(token)]


def _assign_ids(
    new: NewTokens, source: StoredModel, use_unused: bool
) -> tuple[int, ...]:
    count, first = len(new.tokens), source.config.vocab_size
    unused = _unused_ids(source.vocabulary) if use_unused else []
    return (*unused, *range(first, first + count))[:count]


def _add_to_vocabulary(
    model: StoredModel, new: NewTokens, ids: Sequence[int]
) -> StoredModel:
    # New rows follow those of the table, of which the last may have no token.
    token_of = dict.fromkeys(range(model.config.vocab_size), "")
    tokens = model.vocabulary.tokens
    token_of |= {i: tokens[i] for i in model.vocabulary.token_ids}
    token_of |= {
        i: added.token for i, added in zip(ids, new.tokens, strict=True)
    }
    vocabulary = Vocabulary(
        [token_of[i] for i in range(len(token_of))],
        f"{model.vocabulary.source} with the words of {new.source}",
        model.vocabulary.added_tokens,
    )
    settings = model.tokenizer_settings
    return dataclasses.replace(
        model,
        config=dataclasses.replace(model.config, vocab_size=len(vocabulary)),
        vocabulary=vocabulary,
        tokenizer_settings=stored_model.tokenizer_settings(
            vocabulary,
            settings["lower_case"],
            settings["strip_accents"],
            settings["preserve_special_tokens"],
            model.normalization,
            model.max_input_chars_per_word,
        ),
    )


def _extend_weights(
    source: StoredModel,
    config: BertConfig,
    new: NewTokens,
    ids: Sequence[int],
) -> Tensors:
    """Returns the weights, with tables of the sizes in `config`."""
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
        value = source.weights[name]
        if name not in grown:
            return value
        if grown[name].shape[0] == "vocab_size":
            return _add_means(value, config.vocab_size, new, ids)
        return value[np.arange(config.max_position_embeddings) % len(value)]

    return Tensors({**source.weights.shapes, **shapes}, read)


def _add_means(
    old: np.ndarray, size: int, new: NewTokens, ids: Sequence[int]
) -> np.ndarray:
    """Sets the row of each new token to the mean of its old tokens' rows."""
    table = np.empty((size, *old.shape[1:]), old.dtype)
    table[: len(old)] = old
    for i, added in zip(ids, new.tokens, strict=True):
        table[i] = old[list(added.old_ids)].mean(axis=0, dtype=np.float64)
    return table


def _describe_source(source: StoredModel, source_format: str) -> str:
    """Returns lines about the model that was read."""
    report = source.report
    lines = [
        f"Read {source.path} (format {source_format}): a BERT of kind "
        f"{source.task['kind']}, {len(source.weights)} weights."
    ]
    lines += [f"  {note}" for note in report.notes]
    if report.expected:
        lines.append(f"  Not needed: {', '.join(report.expected)}.")
    return "\n".join(lines) + "\n"


def _describe(extension: Extension) -> str:
    """Returns lines about the new words and positions."""
    lines = []
    if extension.new.tokens:
        lines.append(f"New words from {extension.new.source}:")
        lines += [f"  {line}" for line in _describe_words(extension)]
    old, new = _lengths(extension)
    if new > old:
        lines.append(
            f"Positions: {old} rows became {new}; row i is a copy of row i mod "
            f"{old}."
        )
    if extension.source.optimizer_state:
        lines.append(_STATE_NOT_CARRIED)
    return "\n".join(lines) + "\n"


def _build_card(config: Flags, extension: Extension) -> str:
    old, new = _lengths(extension)
    positions = {"before": old, "now": new} if new > old else {}
    notes = extension.source.report.notes
    return model_directory.build_card(
        "A BERT with more words or positions",
        f"A BERT of kind {extension.source.task['kind']}, whose vocabulary or "
        "position table was extended by run/extend_vocabulary.py of bert_tf. "
        "The embedding of a new word is the mean of the embeddings of its old "
        "tokens; it has not been trained since.",
        {
            "Source": {"model": extension.source.revision or config.input}
            | {f"note {n}": note for n, note in enumerate(notes, 1)},
            "New words": _tabulate_words(extension),
            "Positions": positions,
        },
        'import bert_tf\nmodel = bert_tf.load_model(".")',
    )


def _describe_words(extension: Extension) -> list[str]:
    new, ids = extension.new, extension.ids
    vocabulary = extension.source.vocabulary
    before = sum(len(x.old_ids) for x in new.tokens) / len(new.tokens)
    unknown = [x for x in new.tokens if vocabulary.unk_id in x.old_ids]
    shown = list(zip(new.tokens, ids, strict=True))[:_SHOWN_ON_SCREEN]
    lines = [_describe_ids(extension)]
    lines += [
        f"{added.token}: {_split(added, vocabulary)} -> {i}"
        for added, i in shown
    ]
    if len(ids) > len(shown):
        lines.append(f"... and {len(ids) - len(shown)} more")
    lines.append(f"tokens per new word: {before:.2f} before, 1 now")
    if unknown:
        lines.append(
            f"[UNK] before, so they start with its row: {len(unknown)}: "
            f"{_shorten([x.token for x in unknown])}"
        )
    return lines + [
        *_describe_left_out(new, vocabulary),
        "Old tokens keep their ids. Words that only start with a new word (or "
        "contain a new ## token) may be split differently from now on; all "
        "other text keeps its ids.",
    ]


def _describe_ids(extension: Extension) -> str:
    filled = extension.ids[: extension.num_filled]
    grown = extension.ids[extension.num_filled :]
    old = extension.source.config.vocab_size
    new = extension.model.config.vocab_size
    parts = [f"{len(extension.ids)} words"]
    if filled:
        parts.append(
            f"{len(filled)} on [unusedN] lines, from id {filled[0]} to "
            f"{filled[-1]} ({extension.num_unused_left} such lines left)"
        )
    if grown:
        parts.append(
            f"{len(grown)} after the last line, from id {grown[0]} to "
            f"{grown[-1]} ({old} rows became {new})"
        )
    return "; ".join(parts)


def _describe_left_out(new: NewTokens, vocabulary: Vocabulary) -> list[str]:
    existing = [
        f"{token} (line {line}, id {vocabulary.id(token)})"
        for line, token in new.existing
    ]
    repeated = [f"{token} (line {line})" for line, token in new.repeated]
    return [
        f"left out, as {owner}: {len(tokens)}: {_shorten(tokens)}"
        for owner, tokens in (
            ("the vocabulary has them", existing),
            ("earlier lines have them", repeated),
        )
        if tokens
    ]


def _tabulate_words(extension: Extension) -> dict[str, object]:
    if not extension.ids:
        return {}
    vocabulary = extension.source.vocabulary
    tokens = list(zip(extension.new.tokens, extension.ids, strict=True))
    rows = {
        "file": os.path.basename(extension.new.source),
        "words": _describe_ids(extension),
    }
    rows |= {
        f"`{added.token}`": f"id {i}, was {_split(added, vocabulary)}"
        for added, i in tokens[:_SHOWN_IN_CARD]
    }
    if len(tokens) > _SHOWN_IN_CARD:
        rows["..."] = f"and {len(tokens) - _SHOWN_IN_CARD} more"
    return rows


def _split(added: NewToken, vocabulary: Vocabulary) -> str:
    return " ".join(vocabulary.tokens[i] for i in added.old_ids)


def _shorten(items: Sequence[str]) -> str:
    shown = ", ".join(items[:_SHOWN_ON_SCREEN])
    return shown + (", ..." if len(items) > _SHOWN_ON_SCREEN else "")


def _lengths(extension: Extension) -> tuple[int, int]:
    return (
        extension.source.config.max_position_embeddings,
        extension.model.config.max_position_embeddings,
    )
