"""What exports of pretrained models must say: embeddings, words for masks."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.errors import UserError
from bert_tf.export.verify import expectation
from bert_tf.export.verify import texts as text_expectations
from bert_tf.export.verify.expectation import Expectation
from bert_tf.export.verify.expectation import Expected
from bert_tf.export.verify.expectation import Row
from bert_tf.inference import fill_mask
from bert_tf.text.vocabulary import MASK


class Embeddings(Expectation):
    """A vector for each text."""

    def expect_attention(self, rows: Sequence[Row]) -> Expected:
        # Layers above the one that is asked for are not there.
        values = dict(super().expect_attention(rows).values)
        count = values["attention"].shape[1]
        layer = self.artifact.settings["layer"] % count
        values["attention"] = values["attention"][:, : layer + 1]
        return Expected(values)

    def batches(self) -> list[list[Row]]:
        return self.batches_of_texts()

    def expect(self, rows: Sequence[Row]) -> Expected:
        return self.expect_ids(self.pack(rows))

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> Expected:
        layers = self.compute(packed)["encoder_outputs"]
        layer = layers[self.artifact.settings["layer"]].numpy()  # [R, T, H]
        return Expected({"embedding": self._pool(layer, packed["input_mask"])})

    def _pool(self, layer: np.ndarray, mask: np.ndarray) -> np.ndarray:
        pooling = self.artifact.settings["pooling"]
        is_piece = mask[..., np.newaxis] > 0
        if pooling == "cls":
            # Read left to right, only the last piece has seen all others.
            last = mask.sum(1) - 1
            is_last = self.stored.config.left_to_right
            return layer[np.arange(len(layer)), last if is_last else 0]
        if pooling == "max":
            return np.where(is_piece, layer, -np.inf).max(1)
        if pooling == "mean":
            counts = is_piece.sum(1).astype(np.float32)
            return (layer * is_piece).sum(1) / counts
        raise UserError(
            f"Embeddings are pooled by mean, cls or max. Received: {pooling!r}."
        )


class FillMask(Expectation):
    """The likeliest pieces for each [MASK] of a text."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._fill_mask = fill_mask.FillMask(self.stored.path)
        self._top_k = self.artifact.settings["top_k"]
        # Only [MASK] is special: other names in brackets are text.
        self.tokenizer = self.stored.build_tokenizer(
            preserve_special_tokens=False
        )

    def batches(self) -> list[list[Row]]:
        column = [text for text in text_expectations.TEXTS if MASK not in text]
        # No more than the model reads, as the library refuses what is longer.
        longest = [length - 4 for length in self.lengths()]
        column += text_expectations.of_length(
            self.tokenizer, [length for length in longest if length > 0]
        )
        rows = []
        for number, text in enumerate(column):
            half = len(text) // 2
            masked = (
                f"{text} {MASK}",
                f"{MASK}{text}{MASK}",
                f"{text[:half]} {MASK}, {MASK} {text[half:]} {MASK}",
            )[number % 3]
            if self._count(masked) + 2 <= self.artifact.max_seq_length:
                rows.append({"text": masked})
        return [rows[:1], rows]

    def expect_tokens(self, column: Sequence[str]) -> Expected:
        vocabulary = self.tokenizer.vocabulary
        rows = [self._find_pieces(text) for text in column]
        ids = [[piece for piece, _, _ in row] for row in rows]
        return Expected(
            {
                "input_ids": expectation.padded(ids, vocabulary.pad_id),
                "tokens": expectation.strings(
                    [[vocabulary.tokens[x] for x in row] for row in ids]
                ),
                "starts": expectation.padded(
                    [[start for _, start, _ in row] for row in rows], -1
                ),
                "ends": expectation.padded(
                    [[end for _, _, end in row] for row in rows], -1
                ),
            }
        )

    def _find_pieces(self, text: str) -> list[tuple[int, int, int]]:
        """Returns ids, starts and ends of pieces, in bytes."""
        found, begin = [], 0
        for number, part in enumerate(text.split(MASK)):
            if number:
                mask_id = self.tokenizer.vocabulary.mask_id
                found.append((mask_id, begin - len(MASK), begin))
            pieces = self.tokenizer.tokenize_with_offsets([part])
            found += [
                (piece, begin + start, begin + end)
                for piece, start, end in zip(
                    *(x[0].numpy().tolist() for x in pieces), strict=True
                )
            ]
            begin += len(part.encode()) + len(MASK)
        return found

    def expect(self, rows: Sequence[Row]) -> Expected:
        # One more shows whether the last one is certain.
        count = min(self._top_k + 1, len(self.tokenizer.vocabulary))
        found = self._fill_mask([row["text"] for row in rows], count)
        shape = (len(rows), max(map(len, found)), count)
        probabilities = np.zeros(shape, np.float32)
        tokens = np.full(shape, b"", object)
        for row, masks in enumerate(found):
            for mask, candidates in enumerate(masks):
                for place, candidate in enumerate(candidates):
                    probabilities[row, mask, place] = candidate.probability
                    tokens[row, mask, place] = candidate.token.encode()
        return self._expected(tokens, probabilities)

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> Expected:
        logits = self.compute(packed)["masked_lm_logits"].numpy()
        is_mask = packed["input_ids"] == self.tokenizer.vocabulary.mask_id
        places = [np.flatnonzero(row) for row in is_mask]
        count = min(self._top_k + 1, logits.shape[-1])
        shape = (len(places), max(map(len, places)), count)
        ids = np.full(shape, -1, np.int32)
        probabilities = np.zeros(shape, np.float32)
        for row, of_row in enumerate(places):
            probs = expectation.softmax(logits[row, of_row])
            best = np.argsort(-probs, -1, kind="stable")[:, :count]
            ids[row, : len(of_row)] = best
            probabilities[row, : len(of_row)] = np.take_along_axis(
                probs, best, -1
            )
        names = expectation.strings(list(self.tokenizer.vocabulary.tokens))
        tokens = np.where(ids < 0, b"", names[ids])
        expected = self._expected(tokens, probabilities)
        return Expected(
            {**expected.values, "token_ids": ids[..., : self._top_k]},
            {**expected.doubtful, "token_ids": expected.doubtful["tokens"]},
        )

    def _expected(
        self, tokens: np.ndarray, probabilities: np.ndarray
    ) -> Expected:
        """Returns the first `top_k` of candidates, [B, masks, more]."""
        gaps = -np.diff(probabilities, axis=-1)
        is_there = probabilities[..., :1] > 0
        doubtful = (is_there & (gaps < 2 * self.tolerance)).any((1, 2))
        return Expected(
            {
                "tokens": tokens[..., : self._top_k],
                "probabilities": probabilities[..., : self._top_k],
            },
            {"tokens": doubtful},
        )

    def pack_beginnings(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        vocabulary = self.tokenizer.vocabulary
        pieces = []
        for row in rows:
            ids = [vocabulary.cls_id]
            for number, part in enumerate(row["text"].split(MASK)):
                ids += [vocabulary.mask_id] * (number > 0)
                ids += self.tokenizer.tokenize(part).numpy().tolist()
            pieces.append([*ids, vocabulary.sep_id])
        input_ids = expectation.padded(pieces, vocabulary.pad_id)
        mask = expectation.padded([[1] * len(ids) for ids in pieces], 0)
        return {
            "input_ids": input_ids,
            "input_mask": mask,
            "segment_ids": np.zeros_like(input_ids),
        }

    def _count(self, text: str) -> int:
        parts = self.tokenizer.tokenize(text.split(MASK))
        return int(parts.row_lengths().numpy().sum()) + text.count(MASK)
