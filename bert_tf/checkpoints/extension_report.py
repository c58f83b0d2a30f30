"""What an extension says: on the screen and in the model card."""

import os
from collections.abc import Sequence

from bert_tf.checkpoints import model_card
from bert_tf.checkpoints.extend_vocabulary import Extension
from bert_tf.checkpoints.new_tokens import NewPiece
from bert_tf.checkpoints.new_tokens import NewPieces
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.flags.convert import ExtendVocabularyConfig
from bert_tf.text.vocabulary import Vocabulary

_SHOWN_ON_SCREEN = 8
_SHOWN_IN_CARD = 100
_LEFT_BEHIND = (
    "The optimizer's state is not carried over: its moments do not fit tables "
    "that grew, so training continues with new ones."
)


def describe_source(source: StoredModel, source_format: str) -> str:
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


def describe(extension: Extension) -> str:
    """Returns lines about what was added."""
    lines = []
    if extension.new.pieces:
        lines.append(f"New words from {extension.new.source}:")
        lines += [f"  {line}" for line in _describe_words(extension)]
    old, new = _lengths(extension)
    if new > old:
        lines.append(
            f"Positions: {old} rows became {new}; row i is a copy of row i mod "
            f"{old}."
        )
    if extension.source.optimizer_state:
        lines.append(_LEFT_BEHIND)
    return "\n".join(lines) + "\n"


def card(config: ExtendVocabularyConfig, extension: Extension) -> str:
    """Returns the model card of an extended model."""
    old, new = _lengths(extension)
    positions = {"before": old, "now": new} if new > old else {}
    return model_card.build(
        "A BERT with more words or positions",
        f"A BERT of kind {extension.source.task['kind']}, whose vocabulary or "
        "position table was extended by run/extend_vocabulary.py of bert_tf. "
        "The row of a new word is the mean of the rows of its old pieces; it "
        "has not been trained since.",
        {
            "Source": {
                "model": config.input,
                **{
                    f"note {number}": note
                    for number, note in enumerate(
                        extension.source.report.notes, 1
                    )
                },
            },
            "New words": _tabulate_words(extension),
            "Positions": positions,
        },
        'import bert_tf\nmodel = bert_tf.load_model(".")',
    )


def _describe_words(extension: Extension) -> list[str]:
    new, ids = extension.new, extension.ids
    vocabulary = extension.source.vocabulary
    before = sum(len(piece.old_ids) for piece in new.pieces) / len(new.pieces)
    unknown = [x for x in new.pieces if vocabulary.unk_id in x.old_ids]
    shown = list(zip(new.pieces, ids, strict=True))[:_SHOWN_ON_SCREEN]
    lines = [_describe_ids(extension)]
    lines += [
        f"{piece.token}: {_split(piece, vocabulary)} -> {i}"
        for piece, i in shown
    ]
    if len(ids) > len(shown):
        lines.append(f"... and {len(ids) - len(shown)} more")
    lines.append(f"pieces per new word: {before:.2f} before, 1 now")
    if unknown:
        lines.append(
            f"[UNK] before, so they begin with its row: {len(unknown)}: "
            f"{_shorten([piece.token for piece in unknown])}"
        )
    return lines + [
        *_describe_left_out(new, vocabulary),
        "Old pieces keep their ids. Words that only begin with a new word (or "
        "contain a new ## piece) may be split differently from now on; all "
        "other text keeps its ids.",
    ]


def _describe_ids(extension: Extension) -> str:
    filled = extension.ids[: extension.num_filled]
    grown = extension.ids[extension.num_filled :]
    old, new = _sizes(extension)
    parts = [f"{len(extension.ids)} words"]
    if filled:
        parts.append(
            f"{len(filled)} on [unusedN] lines, from id {filled[0]} to "
            f"{filled[-1]} ({extension.num_unused_left} such lines left)"
        )
    if grown:
        parts.append(
            f"{len(grown)} behind the last line, from id {grown[0]} to "
            f"{grown[-1]} ({old} rows became {new})"
        )
    return "; ".join(parts)


def _describe_left_out(new: NewPieces, vocabulary: Vocabulary) -> list[str]:
    lines = []
    if new.known:
        known = [
            f"{token} (line {line}, id {vocabulary.id(token)})"
            for line, token in new.known
        ]
        lines.append(
            f"left out, as the vocabulary has them: {len(known)}: "
            f"{_shorten(known)}"
        )
    if new.repeated:
        repeated = [f"{token} (line {line})" for line, token in new.repeated]
        lines.append(
            "left out, as an earlier line asks for the same: "
            f"{len(repeated)}: {_shorten(repeated)}"
        )
    return lines


def _tabulate_words(extension: Extension) -> dict[str, object]:
    if not extension.ids:
        return {}
    vocabulary = extension.source.vocabulary
    pieces = list(zip(extension.new.pieces, extension.ids, strict=True))
    rows = {
        "file": os.path.basename(extension.new.source),
        "words": _describe_ids(extension),
    }
    rows |= {
        f"`{piece.token}`": f"id {i}, was {_split(piece, vocabulary)}"
        for piece, i in pieces[:_SHOWN_IN_CARD]
    }
    if len(pieces) > _SHOWN_IN_CARD:
        rows["..."] = f"and {len(pieces) - _SHOWN_IN_CARD} more"
    return rows


def _split(piece: NewPiece, vocabulary: Vocabulary) -> str:
    return " ".join(vocabulary.tokens[i] for i in piece.old_ids)


def _shorten(items: Sequence[str]) -> str:
    shown = ", ".join(items[:_SHOWN_ON_SCREEN])
    return shown + (", ..." if len(items) > _SHOWN_ON_SCREEN else "")


def _sizes(extension: Extension) -> tuple[int, int]:
    return (
        extension.source.config.vocab_size,
        extension.model.config.vocab_size,
    )


def _lengths(extension: Extension) -> tuple[int, int]:
    return (
        extension.source.config.max_position_embeddings,
        extension.model.config.max_position_embeddings,
    )
