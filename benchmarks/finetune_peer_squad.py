"""SQuAD features and answers as in transformers' run_qa.py and utils_qa.py.

finetune_peer.py uses this module, in an environment with PyTorch.
"""

import numpy as np

_N_BEST_SIZE = 20
_MAX_ANSWER_LENGTH = 30
_CLS_INDEX = 0


def make_rows(request, examples, tokenizer, is_training):
    """Returns the windows of questions with their paragraphs."""
    encoded = tokenizer(
        [x["question"].lstrip() for x in examples],
        [x["context"] for x in examples],
        truncation="only_second",
        max_length=request["max_seq_length"],
        stride=request["doc_stride"],
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    rows = []
    for index, example in enumerate(encoded["overflow_to_sample_mapping"]):
        offsets = [
            offset if sequence == 1 else None
            for offset, sequence in zip(
                encoded["offset_mapping"][index],
                encoded.sequence_ids(index),
                strict=True,
            )
        ]
        row = {
            "input_ids": encoded["input_ids"][index],
            "token_type_ids": encoded["token_type_ids"][index],
            "example": example,
            "offsets": offsets,
        }
        if is_training:
            start, end = _find_answer(examples[example]["answer"], offsets)
            row |= {"start_positions": start, "end_positions": end}
        rows.append(row)
    return rows


def _find_answer(answer, offsets):
    """Returns the first and last token of an answer, or [CLS] for both."""
    if answer is None:
        return _CLS_INDEX, _CLS_INDEX
    start, end = answer["start"], answer["start"] + len(answer["text"])
    inside = [i for i, offset in enumerate(offsets) if offset is not None]
    if not inside:
        return _CLS_INDEX, _CLS_INDEX
    if offsets[inside[0]][0] > start or offsets[inside[-1]][1] < end:
        return _CLS_INDEX, _CLS_INDEX
    first = max(i for i in inside if offsets[i][0] <= start)
    last = min(i for i in inside if offsets[i][1] >= end)
    return first, last


def _largest(logits):
    return np.argsort(logits)[: -_N_BEST_SIZE - 1 : -1].tolist()


def to_predictions(request, examples, rows, outputs):
    """Returns the best answer of each question and, for 2.0, the null odds."""
    windows = [[] for _ in examples]
    for row, output in zip(rows, outputs, strict=True):
        windows[row["example"]].append((row, output))
    return {
        example["id"]: _predict(example, of_example, request["with_negative"])
        for example, of_example in zip(examples, windows, strict=True)
    }


def _predict(example, windows, with_negative):
    candidates, null_score = [], None
    for row, output in windows:
        starts, ends = output["start_logits"], output["end_logits"]
        null = float(starts[_CLS_INDEX] + ends[_CLS_INDEX])
        null_score = null if null_score is None else min(null, null_score)
        offsets = row["offsets"]
        # Padding has logits, too, so positions without offsets are skipped.
        for start in _largest(starts):
            if start >= len(offsets) or not offsets[start]:
                continue
            for end in _largest(ends):
                if end >= len(offsets) or not offsets[end]:
                    continue
                if not start <= end < start + _MAX_ANSWER_LENGTH:
                    continue
                score = float(starts[start] + ends[end])
                candidates.append((score, offsets[start][0], offsets[end][1]))
    # On a tie, the first counts, as with a stable sort.
    best = max(candidates, key=lambda x: x[0], default=None)
    answer = "" if best is None else example["context"][best[1] : best[2]]
    if not with_negative:
        return {"answer": answer}
    # Without a candidate, the odds must choose "no answer".
    odds = 1e6 if best is None else null_score - best[0]
    return {"answer": answer, "null_odds": odds}
