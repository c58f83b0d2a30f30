"""New words and longer texts for a model that is there.

A new word begins where its pieces left off: its row of the word embeddings is
the mean of their rows. So is its output bias in the masked-LM head, as the
head's scores are linear in row and bias: the new word's score is the mean of
its pieces' scores. All other weights stay as they are, number by number, and
every old piece keeps its id.
"""

import dataclasses
import re
from collections.abc import Callable
from collections.abc import Sequence

import numpy as np

from bert_tf.checkpoints import new_tokens
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.new_tokens import NewPieces
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.text.vocabulary import Vocabulary

_UNUSED = re.compile(r"\[unused\d+\]")


@dataclasses.dataclass(frozen=True)
class Extension:
    """An extended model, and what was done to it.

    Attributes:
      model: The model that came out.
      source: The model that went in.
      new: The new pieces; none if only positions were added.
      ids: The id of each new piece.
    """

    model: StoredModel
    source: StoredModel
    new: NewPieces
    ids: tuple[int, ...]

    @property
    def num_filled(self) -> int:
        """How many new pieces stand on lines that were [unusedN]."""
        return sum(x < self.source.config.vocab_size for x in self.ids)

    @property
    def num_unused_left(self) -> int:
        """How many [unusedN] lines are left."""
        return len(_unused_ids(self.model.vocabulary))


def extend(
    source: StoredModel,
    new: NewPieces | None = None,
    use_unused: bool = True,
    max_position_embeddings: int | None = None,
) -> Extension:
    """Adds words to a model's vocabulary, and rows to its tables.

    Args:
      source: The model.
      new: The words; what `read_new_pieces` returns.
      use_unused: Whether they take the [unusedN] lines first, in the order of
        their ids. The others follow behind the last line.
      max_position_embeddings: The new length of the position table: row i is
        a copy of row i mod the old length, so that texts as long as before
        are read as before and each further stretch begins like them.

    Returns:
      The model, whose weights are computed when they are read. It has no
      optimizer state: moments of rows that are new say nothing.

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
    new = new or NewPieces("", ())
    ids: tuple[int, ...] = ()
    if new.pieces:
        ids = _assign_ids(new, source.vocabulary, use_unused)
        model = _add_to_vocabulary(model, new, ids)
        new_tokens.check_matched(new, model.build_tokenizer())
    model = dataclasses.replace(
        model, weights=_extend_weights(source, model.config, new, ids)
    )
    return Extension(model, source, new, ids)


def read_new_pieces(path: str, flag: str, source: StoredModel) -> NewPieces:
    """Reads the words that a model is to get; see `new_pieces.read`."""
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
    new: NewPieces, vocabulary: Vocabulary, use_unused: bool
) -> tuple[int, ...]:
    slots = _unused_ids(vocabulary) if use_unused else []
    filled = slots[: len(new.pieces)]
    first = len(vocabulary)
    grown = range(first, first + len(new.pieces) - len(filled))
    return (*filled, *grown)


def _add_to_vocabulary(
    model: StoredModel, new: NewPieces, ids: Sequence[int]
) -> StoredModel:
    token_of = dict(enumerate(model.vocabulary.tokens))
    token_of |= {
        i: piece.token for i, piece in zip(ids, new.pieces, strict=True)
    }
    vocabulary = Vocabulary(
        [token_of[i] for i in range(len(token_of))],
        f"{model.vocabulary.source} with the words of {new.source}",
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
        ),
    )


def _extend_weights(
    source: StoredModel,
    config: BertConfig,
    new: NewPieces,
    ids: Sequence[int],
) -> Tensors:
    """Returns the weights, those of the tables in the sizes of `config`."""

    def add_words(old):
        return _add_means(old, config.vocab_size, new, ids)

    def add_positions(old):
        return old[np.arange(config.max_position_embeddings) % len(old)]

    changes: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
    shapes = dict(source.weights.shapes)
    for row in weight_map.rows(source.config):
        if row.name not in shapes:
            continue
        if row.shape[0] == "vocab_size":
            changes[row.name] = add_words
        elif row.shape[0] == "max_position_embeddings":
            changes[row.name] = add_positions
        else:
            continue
        shapes[row.name] = weight_map.shape_of(row, config)

    def read(name):
        value = source.weights[name]
        return changes[name](value) if name in changes else value

    return Tensors(shapes, read)


def _add_means(
    old: np.ndarray, size: int, new: NewPieces, ids: Sequence[int]
) -> np.ndarray:
    """Puts the mean of its old pieces' rows into the row of each new piece.

    Args:
      old: <float32>[V, ...].
      size: The new V.
      new: The new pieces.
      ids: Their ids.
    """
    table = np.empty((size, *old.shape[1:]), old.dtype)
    table[: len(old)] = old
    for i, piece in zip(ids, new.pieces, strict=True):
        table[i] = old[list(piece.old_ids)].mean(axis=0, dtype=np.float64)
    return table
