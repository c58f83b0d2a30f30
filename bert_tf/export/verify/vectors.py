"""Reference outputs of embeddings and masked-token prediction."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from bert_tf.errors import UserError
from bert_tf.export.verify import reference
from bert_tf.export.verify import texts as test_texts
from bert_tf.export.verify.reference import Reference
from bert_tf.export.verify.reference import ReferenceOutputs
from bert_tf.export.verify.reference import Row
from bert_tf.inference import fill_mask
from bert_tf.text.vocabulary import MASK


class Embeddings(Reference):
    """Reference outputs of embeddings."""

    def expect_attention(self, rows: Sequence[Row]) -> ReferenceOutputs:
        # The export lacks the layers above the chosen one.
        values = dict(super().expect_attention(rows).values)
        count = values["attention"].shape[1]
        layer = self.artifact.settings["layer"] % count
        values["attention"] = values["attention"][:, : layer + 1]
        return ReferenceOutputs(values)

    def batches(self) -> list[list[Row]]:
        return self.batches_of_texts()

    def expect(self, rows: Sequence[Row]) -> ReferenceOutputs:
        return self.expect_ids(self.pack(rows))

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        layers = self.compute(packed)["encoder_outputs"]
        layer = layers[self.artifact.settings["layer"]].numpy()  # [R, T, H]
        return ReferenceOutputs(
            {"embedding": self._pool(layer, packed["input_mask"])}
        )

    def _pool(self, layer: np.ndarray, mask: np.ndarray) -> np.ndarray:
        pooling = self.artifact.settings["pooling"]
        is_token = mask[..., np.newaxis] > 0
        if pooling == "cls":
            # In a left-to-right model, only the last token attends to all.
            last = mask.sum(1) - 1
            is_last = self.stored.config.left_to_right
            return layer[np.arange(len(layer)), last if is_last else 0]
        if pooling == "max":
            return np.where(is_token, layer, -np.inf).max(1)
        if pooling == "mean":
            counts = is_token.sum(1).astype(np.float32)
            return (layer * is_token).sum(1) / counts
        raise UserError(
            "The pooling of embeddings must be mean, cls or max. Received: "
            f"{pooling!r}."
        )


class FillMask(Reference):
    """Reference outputs of masked-token prediction."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._fill_mask = fill_mask.FillMask(self.stored.path)
        self._top_k = self.artifact.settings["top_k"]
        # Only [MASK] is special: other names in brackets are text.
        self.tokenizer = self.stored.build_tokenizer(
            preserve_special_tokens=False
        )

    def batches(self) -> list[list[Row]]:
        column = [text for text in test_texts.TEXTS if MASK not in text]
        # The library rejects texts longer than the model reads.
        longest = [length - 4 for length in self.lengths()]
        column += test_texts.of_length(
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

    def expect_tokens(self, column: Sequence[str]) -> ReferenceOutputs:
        vocabulary = self.tokenizer.vocabulary
        rows = [self._find_tokens(text) for text in column]
        ids = [[token for token, _, _ in row] for row in rows]
        return ReferenceOutputs(
            {
                "input_ids": reference.padded(ids, vocabulary.pad_id),
                "tokens": reference.strings(
                    [[vocabulary.tokens[x] for x in row] for row in ids]
                ),
                "starts": reference.padded(
                    [[start for _, start, _ in row] for row in rows], -1
                ),
                "ends": reference.padded(
                    [[end for _, _, end in row] for row in rows], -1
                ),
            }
        )

    def _find_tokens(self, text: str) -> list[tuple[int, int, int]]:
        """Returns token ids with their starts and ends in bytes."""
        found, begin = [], 0
        for number, part in enumerate(text.split(MASK)):
            if number:
                mask_id = self.tokenizer.vocabulary.mask_id
                found.append((mask_id, begin - len(MASK), begin))
            tokens = self.tokenizer.tokenize_with_offsets([part])
            found += [
                (token, begin + start, begin + end)
                for token, start, end in zip(
                    *(x[0].numpy().tolist() for x in tokens), strict=True
                )
            ]
            begin += len(part.encode()) + len(MASK)
        return found

    def expect(self, rows: Sequence[Row]) -> ReferenceOutputs:
        # One more candidate shows whether the last one is certain.
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

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        logits = self.compute(packed)["masked_lm_logits"].numpy()
        is_mask = packed["input_ids"] == self.tokenizer.vocabulary.mask_id
        places = [np.flatnonzero(row) for row in is_mask]
        count = min(self._top_k + 1, logits.shape[-1])
        shape = (len(places), max(map(len, places)), count)
        ids = np.full(shape, -1, np.int32)
        probabilities = np.zeros(shape, np.float32)
        for row, of_row in enumerate(places):
            probs = special.softmax(logits[row, of_row], -1)
            best = np.argsort(-probs, -1, kind="stable")[:, :count]
            ids[row, : len(of_row)] = best
            probabilities[row, : len(of_row)] = np.take_along_axis(
                probs, best, -1
            )
        names = reference.strings(list(self.tokenizer.vocabulary.tokens))
        tokens = np.where(ids < 0, b"", names[ids])
        expected = self._expected(tokens, probabilities)
        return ReferenceOutputs(
            {**expected.values, "token_ids": ids[..., : self._top_k]},
            {**expected.doubtful, "token_ids": expected.doubtful["tokens"]},
        )

    def _expected(
        self, tokens: np.ndarray, probabilities: np.ndarray
    ) -> ReferenceOutputs:
        """Returns the first `top_k` of the candidates [B, masks, count]."""
        gaps = -np.diff(probabilities, axis=-1)
        is_there = probabilities[..., :1] > 0
        doubtful = (is_there & (gaps < 2 * self.tolerance)).any((1, 2))
        return ReferenceOutputs(
            {
                "tokens": tokens[..., : self._top_k],
                "probabilities": probabilities[..., : self._top_k],
            },
            {"tokens": doubtful},
        )

    def pack_beginnings(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        vocabulary = self.tokenizer.vocabulary
        rows_of_ids = []
        for row in rows:
            ids = [vocabulary.cls_id]
            for number, part in enumerate(row["text"].split(MASK)):
                ids += [vocabulary.mask_id] * (number > 0)
                ids += self.tokenizer.tokenize(part).numpy().tolist()
            rows_of_ids.append([*ids, vocabulary.sep_id])
        input_ids = reference.padded(rows_of_ids, vocabulary.pad_id)
        mask = reference.padded([[1] * len(ids) for ids in rows_of_ids], 0)
        return {
            "input_ids": input_ids,
            "input_mask": mask,
            "segment_ids": np.zeros_like(input_ids),
        }

    def _count(self, text: str) -> int:
        parts = self.tokenizer.tokenize(text.split(MASK))
        return int(parts.row_lengths().numpy().sum()) + text.count(MASK)
