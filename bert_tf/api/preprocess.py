"""`preprocess`: raw rows to the inputs of a model."""

from typing import Any

import keras

from bert_tf.api import raw_rows
from bert_tf.errors import UserError
from bert_tf.text.tokenizer import BertTokenizer


def preprocess(
    model_or_tokenizer: keras.Model | BertTokenizer,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
) -> Any:
    """Tokenizes and packs raw rows as `fit` of a loaded model does.

    Args:
      model_or_tokenizer: A model of `load_model`, whose task decides what a row
        is and how long it may be; or a tokenizer, for texts and pairs.
      x: Raw rows: a list of texts or pairs, two lists in a tuple for pairs,
        columns of texts, or whatever the model's `fit` takes.
      y: Their labels, for models only, or None.
      sample_weight: The weight of each row, or None.

    Returns:
      The inputs `input_ids`, `input_mask` and `segment_ids` <int32>[N, S]; with
      labels a tuple of inputs and labels, with weights of all three.

    Raises:
      UserError: If a row or label does not fit the task, or the first argument
        has no tokenizer.

    Example:
      >>> model = bert_tf.load_model(
      ...     "bert-base-uncased", "classification", labels=["bad", "good"]
      ... )
      >>> features = bert_tf.preprocess(model, ["A fine film.", "No."])
      >>> model(features)["logits"].shape
      TensorShape([2, 2])
    """
    if isinstance(model_or_tokenizer, BertTokenizer):
        if y is not None or sample_weight is not None:
            raise UserError(
                "A tokenizer knows no labels: give the model in its place. "
                "Received: labels or weights."
            )
        texts = raw_rows.to_texts(raw_rows.to_rows(x))
        features = model_or_tokenizer(*texts)
        return {name: value.numpy() for name, value in features.items()}
    preprocessor = getattr(model_or_tokenizer, "preprocessor", None)
    if preprocessor is None:
        raise UserError(
            "Expected a tokenizer, or a model of bert_tf.load_model, which has "
            f"one. Received: {type(model_or_tokenizer).__name__}."
        )
    return preprocessor(x, y, sample_weight)
