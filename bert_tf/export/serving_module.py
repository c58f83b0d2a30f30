"""Builds the signatures of a SavedModel from a model and a serving head.

Shapes:
  B: batch size.
  P: tokens per text.
  R: rows of the model.
  T: tokens per row.
  L: layers.
  N: attention heads.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf.export import examples
from bert_tf.export import graph_file
from bert_tf.export.heads.head import ServingHead

SERVING = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
FROM_IDS = "from_ids"
FROM_EXAMPLES = "from_examples"
TOKENIZE = "tokenize"
ATTENTION = "attention"
# The methods of TensorFlow Serving's other interfaces, and the outputs of
# `ServingHead.answer` that only they return.
_METHODS = {
    "classify": tf.saved_model.CLASSIFY_METHOD_NAME,
    "regress": tf.saved_model.REGRESS_METHOD_NAME,
}
_OUTPUTS_OF_METHOD = {
    "classify": ("classes", "scores"),
    "regress": ("outputs",),
}

_Tensors = Mapping[str, tf.Tensor]

_Condense = Callable[[Mapping[str, Any]], dict[str, tf.Tensor]]


class ServingModule:
    """The signatures of a model and their variables, each stored once.

    Args:
      head: Converts strings to the model's inputs, and its outputs to answers.
      model: The model; its outputs include the attention probabilities.
      ids_only: Whether to leave out all signatures that read strings.

    Attributes:
      signatures: The traced functions by name.
      weights: The variables that they read.
    """

    def __init__(
        self, head: ServingHead, model: keras.Model, ids_only: bool = False
    ) -> None:
        self._head = head
        self._model = model
        # Several signatures call it, but the graph holds it once.
        self._answer = tf.function(
            self._answer_strings,
            input_signature=[head.input_specs()],
            autograph=False,
        )
        functions = self._ids_functions() if ids_only else self._functions()
        self.signatures = {
            name: trace(function, specs)
            for name, (function, specs) in functions.items()
        }
        self.weights = _variables(self.signatures.values())

    def save(self, directory: str) -> None:
        """Writes the SavedModel, creating the directory if necessary."""
        saved = tf.Module()
        saved.weights = self.weights
        tf.saved_model.save(
            saved,
            directory,
            signatures=self.signatures,
            options=tf.saved_model.SaveOptions(
                # Only training needs gradients.
                experimental_custom_gradients=False
            ),
        )
        graph_file.set_methods(
            directory,
            {
                name: _METHODS[name]
                for name in self.signatures
                if name in _METHODS
            },
        )

    def _ids_functions(self):
        return {SERVING: (self._from_ids_to_numbers, self._head.ids_specs())}

    def _functions(self):
        head = self._head
        strings = head.input_specs()
        functions = {
            SERVING: (self._serve, strings),
            FROM_IDS: (self._from_ids, head.ids_specs()),
            FROM_EXAMPLES: (
                self._from_examples,
                {"examples": examples.spec("examples")},
            ),
            TOKENIZE: (
                self._tokenize,
                {"text": tf.TensorSpec([None], tf.string, "text")},
            ),
        }
        if head.has_attention:
            functions[ATTENTION] = (self._attention, strings)
        if head.method:
            functions[head.method] = (
                self._serve_method,
                {"inputs": examples.spec("inputs")},
            )
        return functions

    def _answer_strings(self, strings: _Tensors) -> dict[str, tf.Tensor]:
        with tf.control_dependencies(check_rows(strings)):
            strings = {name: tf.identity(x) for name, x in strings.items()}
        rows = self._head.pack(strings)
        outputs = compute(
            self._model,
            rows.inputs,
            self._head.rows_at_once(rows.inputs),
            self._head.condense,
        )
        return self._head.answer(outputs, rows)

    def _serve(self, **strings: tf.Tensor) -> dict[str, tf.Tensor]:
        return for_predict(self._head, self._answer(strings))

    def _from_ids(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return answer_ids(self._head, self._model, inputs)

    def _from_ids_to_numbers(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return answer_ids_in_numbers(self._head, self._model, inputs)

    def _from_examples(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._serve(
            **examples.parse(inputs["examples"], self._head.input_specs())
        )

    def _serve_method(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        answer = self._answer(
            examples.parse(inputs["inputs"], self._head.input_specs())
        )
        return {x: answer[x] for x in _OUTPUTS_OF_METHOD[self._head.method]}

    def _tokenize(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        return tokenize(self._head, text)

    def _attention(self, **strings: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `tokens` <string>[B, T] and `attention` [B, L, N, T, T]."""
        inputs = self._head.attention_rows(strings)
        tokens = self._head.tokenizer.tokens(inputs["input_ids"])
        return {
            "tokens": tf.where(inputs["input_mask"] > 0, tokens, ""),
            "attention": tf.cast(
                tf.stack(compute(self._model, inputs)["attention_probs"], 1),
                tf.float32,
            ),
        }


def for_predict(
    head: ServingHead, answer: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Returns an answer without the outputs of classify or regress."""
    others = _OUTPUTS_OF_METHOD.get(head.method, ())
    return {x: t for x, t in answer.items() if x not in others}


def answer_ids(
    head: ServingHead, model: keras.Model, inputs: _Tensors
) -> dict[str, tf.Tensor]:
    """Returns the answer to a request with token ids.

    Args:
      head: The head.
      model: The model.
      inputs: A tensor for each of `ServingHead.ids_specs`.
    """
    rows = head.ids_rows(inputs)
    # All rows at once: the client chooses their number, and other readers of
    # SavedModels do not support loops.
    answer = head.answer_ids(compute(model, rows.inputs), rows)
    return for_predict(head, answer)


def answer_ids_in_numbers(
    head: ServingHead, model: keras.Model, inputs: _Tensors
) -> dict[str, tf.Tensor]:
    """Returns the numeric outputs of `answer_ids`."""
    answer = answer_ids(head, model, inputs)
    return {x: t for x, t in answer.items() if t.dtype != tf.string}


def check_rows(strings: _Tensors) -> list[tf.Operation]:
    """Returns assertions that all inputs have the same number of rows.

    Otherwise a single row would be broadcast to the rows of another input.

    Args:
      strings: A tensor for each of a head's inputs.
    """
    (name, first), *others = strings.items()
    return [
        tf.debugging.assert_equal(
            tf.shape(first)[0],
            tf.shape(other)[0],
            f"`{name}` and `{other_name}` must have the same number of rows.",
        )
        for other_name, other in others
    ]


def tokenize(head: ServingHead, text: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the tokens of texts, without special tokens, for debugging.

    Args:
      head: The head, whose tokenizer is used.
      text: <string>[B].

    Returns:
      `input_ids` <int32>[B, P], padded with [PAD]; `tokens` <string>[B, P],
      padded with ""; `starts` and `ends` <int32>[B, P], bytes of the text,
      padded with -1.
    """
    ids, starts, ends = head.tokenize_with_offsets(text)
    return {
        "input_ids": ids.to_tensor(head.tokenizer.vocabulary.pad_id),
        "tokens": head.tokenizer.tokens(ids).to_tensor(""),
        "starts": starts.to_tensor(-1),
        "ends": ends.to_tensor(-1),
    }


def trace(
    function: Callable[..., dict[str, tf.Tensor]],
    specs: Mapping[str, tf.TensorSpec],
):
    """Traces a function and gives its output tensors their names.

    Args:
      function: Takes and returns tensors by name.
      specs: The specs of its inputs.
    """

    def named(**inputs):
        outputs = function(**inputs)
        return {name: tf.identity(x, name) for name, x in outputs.items()}

    return tf.function(named, autograph=False).get_concrete_function(**specs)


def _variables(functions) -> list[tf.Variable]:
    """Returns the distinct variables that functions read."""
    found = {}
    for function in functions:
        for variable in function.graph.variables:
            found[id(variable)] = variable
    return list(found.values())


def compute(
    model: keras.Model,
    inputs: Mapping[str, tf.Tensor],
    max_rows_at_once: int | tf.Tensor | None = None,
    condense: _Condense = dict,
) -> dict[str, tf.Tensor]:
    """Calls a model in the graph, a bounded number of rows at a time.

    Args:
      model: The model.
      inputs: The inputs of the model, [R, ...] each.
      max_rows_at_once: The maximum number of rows per call, <int32>[], or None
        for one call with all rows. It bounds the memory.
      condense: Reduces the outputs of each call to the tensors [R, ...] that
        are kept and returned; all hidden states of a book would not fit in
        memory.
    """
    if max_rows_at_once is None:
        return model(dict(inputs), training=False)
    like = _like(model, inputs, condense)
    count = tf.shape(inputs["input_ids"])[0]
    # Zero rows make one part, too, as concatenation needs at least one.
    num_parts = tf.maximum(-(-count // max_rows_at_once), 1)
    arrays = [
        tf.TensorArray(
            spec.dtype, num_parts, infer_shape=False, element_shape=spec.shape
        )
        for spec in like.values()
    ]

    def body(number, *arrays):
        start = number * max_rows_at_once
        outputs = condense(
            model(
                {
                    x: t[start : start + max_rows_at_once]
                    for x, t in inputs.items()
                },
                training=False,
            )
        )
        written = [
            array.write(number, outputs[name])
            for name, array in zip(like, arrays, strict=True)
        ]
        return number + 1, *written

    _, *arrays = tf.while_loop(
        lambda number, *_: number < num_parts,
        body,
        (0, *arrays),
        # Computing several parts in parallel would need more memory.
        parallel_iterations=1,
    )
    return {
        name: tf.ensure_shape(array.concat(), spec.shape)
        for (name, spec), array in zip(like.items(), arrays, strict=True)
    }


def _like(
    model: keras.Model, inputs: Mapping[str, tf.Tensor], condense: _Condense
) -> dict[str, tf.TensorSpec]:
    """Returns the specs of the condensed outputs by tracing the model."""

    def kept(rows):
        return condense(model(rows, training=False))

    specs = {
        name: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
        for name, tensor in inputs.items()
    }
    traced = tf.function(kept, autograph=False).get_concrete_function(specs)
    return {
        name: tf.TensorSpec(tensor.shape, tensor.dtype)
        for name, tensor in traced.structured_outputs.items()
    }
