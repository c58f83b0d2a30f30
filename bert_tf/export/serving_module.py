"""Signatures of a SavedModel, and of the graphs around a .tflite file.

Signatures skip padding, unless the head uses the outputs for padding. The
signature `attention`, --ids_only exports and .tflite files compute padding.

Shapes:
  B: batch size.
  P: tokens per text.
  R: rows that the model gets.
  T: tokens per row.
  L: layers.
  N: attention heads.
"""

import functools
import os
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.saved_model import fingerprinting_utils

from bert_tf.errors import UserError
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import ServingHead
from bert_tf.export.tflite import convert as conversion
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.io import files
from bert_tf.modeling import layouts
from bert_tf.serving import litert
from bert_tf.tasks.task import TensorMap

FILE = "saved_model.pb"
SERVING = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
FROM_IDS = "from_ids"
FROM_EXAMPLES = "from_examples"
TOKENIZE = "tokenize"
# The signatures of every export that takes strings, in addition to `SERVING`.
OF_STRINGS = (FROM_IDS, FROM_EXAMPLES, TOKENIZE)
ATTENTION = "attention"
TOKENIZE_SPECS = {"text": tf.TensorSpec([None], tf.string, "text")}
# TensorFlow Serving's methods besides predict, and their names in SavedModels.
_METHODS = {
    "classify": tf.saved_model.CLASSIFY_METHOD_NAME,
    "regress": tf.saved_model.REGRESS_METHOD_NAME,
}
# Method -> the outputs of `ServingHead.answer` that only this method returns.
OUTPUTS_OF_METHOD = {
    "classify": ("classes", "scores"),
    "regress": ("outputs",),
}

_STATE_PREFIX = "state_"

_Specs = dict[str, tf.TensorSpec]

_Condense = Callable[[Mapping[str, Any]], dict[str, tf.Tensor]]


class ServingModule:
    """The signatures of a model and their variables, each stored once.

    Args:
      head: Converts strings to model inputs, and model outputs to answers.
      model: The model; its outputs include the attention probabilities.
      ids_only: Whether to leave out all signatures that read strings.

    Attributes:
      signatures: The traced functions by name.
      weights: The variables that the functions read.
    """

    def __init__(
        self, head: ServingHead, model: keras.Model, ids_only: bool = False
    ) -> None:
        self._head = head
        self._model = model
        self._unpad = not head.reads_padding
        # Use a tf.function, stored once even if several signatures call it.
        self._answer = tf.function(
            self._answer_strings,
            input_signature=[head.input_specs()],
            autograph=False,
        )
        functions = self._ids_functions() if ids_only else self._functions()
        self.signatures = {
            name: conversion.trace(function, specs)
            for name, (function, specs) in functions.items()
        }
        variables = {
            id(variable): variable
            for function in self.signatures.values()
            for variable in function.graph.variables
        }
        # Graphs list variables in any order. Sort them, or two exports differ.
        self.weights = sorted(variables.values(), key=lambda x: x.name)

    def save(self, directory: str) -> None:
        """Writes the SavedModel, creating the directory if necessary."""
        saved = tf.Module()
        saved.weights = self.weights
        tf.saved_model.save(
            saved,
            directory,
            signatures=self.signatures,
            options=tf.saved_model.SaveOptions(
                # Leave out gradients, which only training needs.
                experimental_custom_gradients=False
            ),
        )
        methods = {x: _METHODS[x] for x in self.signatures if x in _METHODS}
        _set_methods(directory, methods)

    def _ids_functions(self):
        def serve(**inputs):
            return answer_ids_in_numbers(self._head, self._model, inputs)

        return {SERVING: (serve, self._head.ids_specs())}

    def _functions(self):
        head = self._head
        strings = head.input_specs()

        def from_ids(**inputs):
            checks = [check_segments(self._model, inputs)]
            inputs = after(checks, check_rows(inputs))
            unpad = self._unpad and not head.returns_padding
            return answer_ids(
                head, self._model, inputs, unpad, head.max_ids_rows_at_once
            )

        def from_examples(examples):
            return self._serve(**parse_examples(examples, strings))

        def serve_method(inputs):
            answer = self._answer(parse_examples(inputs, strings))
            return {x: answer[x] for x in OUTPUTS_OF_METHOD[head.method]}

        functions = {
            SERVING: (self._serve, strings),
            FROM_IDS: (from_ids, head.ids_specs()),
            FROM_EXAMPLES: (
                from_examples,
                {"examples": tf.TensorSpec([None], tf.string, "examples")},
            ),
            TOKENIZE: (functools.partial(tokenize, head), TOKENIZE_SPECS),
        }
        if head.has_attention:
            functions[ATTENTION] = (self._attention, strings)
        if head.method:
            functions[head.method] = (
                serve_method,
                {"inputs": tf.TensorSpec([None], tf.string, "inputs")},
            )
        return functions

    def _answer_strings(self, strings: TensorMap) -> dict[str, tf.Tensor]:
        rows = self._head.pack(check_rows(strings))
        outputs = compute(
            self._model,
            rows.inputs,
            self._head.rows_at_once(rows.inputs),
            self._head.condense,
            self._unpad,
        )
        return self._head.answer(outputs, rows)

    def _serve(self, **strings: tf.Tensor) -> dict[str, tf.Tensor]:
        return for_predict(self._head, self._answer(strings))

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


def for_predict(head: ServingHead, answer: TensorMap) -> dict[str, tf.Tensor]:
    """Returns an answer without outputs that only `head.method` returns."""
    others = OUTPUTS_OF_METHOD.get(head.method, ())
    return {x: t for x, t in answer.items() if x not in others}


def answer_ids(
    head: ServingHead,
    model: keras.Model,
    inputs: TensorMap,
    unpad: bool = False,
    max_rows_at_once: int | None = None,
) -> dict[str, tf.Tensor]:
    """Returns the answer to token ids, which `head.ids_specs()` specifies."""
    rows = head.ids_rows(inputs)
    outputs = compute(
        model, rows.inputs, max_rows_at_once, head.condense, unpad
    )
    return for_predict(head, head.answer_ids(outputs, rows))


def answer_ids_in_numbers(
    head: ServingHead, model: keras.Model, inputs: TensorMap
) -> dict[str, tf.Tensor]:
    """Returns the numeric outputs of `answer_ids`."""
    # Compute all rows in one call: several calls would need a loop in the
    # graph, which some runtimes cannot run.
    answer = answer_ids(head, model, inputs)
    return {x: t for x, t in answer.items() if t.dtype != tf.string}


def check_rows(inputs: TensorMap) -> dict[str, tf.Tensor]:
    """Returns inputs after checking that all have the same number of rows.

    Without this check, a single `text_pair` would be paired with each text.
    """
    (name, first), *others = inputs.items()
    return after(
        [
            tf.debugging.assert_equal(
                tf.shape(first)[0],
                tf.shape(other)[0],
                f"`{name}` and `{other_name}` must have the same number of "
                "rows.",
            )
            for other_name, other in others
        ],
        inputs,
    )


def check_segments(model: keras.Model, inputs: TensorMap) -> tf.Operation:
    """Asserts that segment ids are valid: invalid ids would embed as zeros."""
    last = model.bert_config.type_vocab_size - 1
    return _assert_between(inputs["segment_ids"], 0, last, "`segment_ids`")


def _assert_between(
    values: tf.Tensor, least: int, most: int, subject: str
) -> tf.Operation:
    return tf.debugging.assert_equal(
        values,
        tf.clip_by_value(values, least, most),
        f"{subject} must be from {least} to {most}.",
    )


def after(
    checks: list[tf.Operation], tensors: TensorMap
) -> dict[str, tf.Tensor]:
    """Returns tensors that are computed only if assertions hold."""
    with tf.control_dependencies(checks):
        return {name: tf.identity(x) for name, x in tensors.items()}


def parse_examples(
    serialized: tf.Tensor, specs: Mapping[str, tf.TensorSpec]
) -> dict[str, tf.Tensor]:
    """Returns the features of tf.train.Examples <string>[B].

    A feature with the spec <string>[B] has one string per Example; a feature
    with <string>[B, None] has any number. Shorter lists are padded with "", so
    ["a", "b"] and ["c"] become [["a", "b"], ["c", ""]].
    """
    features = {
        name: tf.io.FixedLenFeature([], tf.string)
        if spec.shape.rank == 1
        else tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True)
        for name, spec in specs.items()
    }
    return tf.io.parse_example(serialized, features)


def tokenize(head: ServingHead, text: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the tokens of texts, without special tokens, for debugging.

    Returns:
      `input_ids` <int32>[B, P], padded with [PAD]; `tokens` <string>[B, P],
      padded with ""; `starts` and `ends` <int32>[B, P], byte offsets in
      the text, padded with -1.
    """
    ids, starts, ends = head.tokenize_with_offsets(text)
    return {
        "input_ids": ids.to_tensor(head.tokenizer.vocabulary.pad_id),
        "tokens": head.tokenizer.tokens(ids).to_tensor(""),
        "starts": starts.to_tensor(-1),
        "ends": ends.to_tensor(-1),
    }


def compute(
    model: keras.Model,
    inputs: TensorMap,
    max_rows_at_once: int | tf.Tensor | None = None,
    condense: _Condense = dict,
    unpad: bool = False,
) -> dict[str, tf.Tensor]:
    """Calls a model in the graph, for a limited number of rows at a time.

    Args:
      model: The model.
      inputs: The model's inputs, [R, T] each, or [B, C, T] for B x C rows.
      max_rows_at_once: The maximum number of rows per call, <int32>[], to limit
        memory. With a maximum of 2, five rows take calls of 2, 2 and 1 rows.
        With None, one call computes all rows, and `condense` is not used.
      condense: Takes the outputs of a call, [R, ...] each, and returns the ones
        to keep: all hidden states of a book, for example, do not fit in memory.
      unpad: Whether to skip padding; outputs for padding are then 0.
    """

    def call(rows):
        if unpad:
            rows = rows | layouts.find_tokens(
                rows[INPUT_MASK.name], for_inference=True
            )
        return model(rows, training=False)

    if max_rows_at_once is None:
        return call(dict(inputs))
    axes = tf.shape(inputs[INPUT_IDS.name])[:-1]
    has_two_axes = inputs[INPUT_IDS.name].shape.rank == 3
    if has_two_axes:
        inputs = {
            name: tf.reshape(x, [-1, 1, tf.shape(x)[-1]])
            for name, x in inputs.items()
        }

    def condensed(rows):
        return condense(call(rows))

    specs = {
        name: tf.TensorSpec([None, *x.shape[1:]], x.dtype)
        for name, x in inputs.items()
    }
    traced = tf.function(condensed, autograph=False)
    like = traced.get_concrete_function(specs).structured_outputs
    count = tf.shape(inputs[INPUT_IDS.name])[0]
    # Make an empty part of zero rows, because `concat` needs at least one part.
    num_parts = tf.maximum(-(-count // max_rows_at_once), 1)
    arrays = [
        tf.TensorArray(
            x.dtype, num_parts, infer_shape=False, element_shape=x.shape
        )
        for x in like.values()
    ]

    def body(number, *arrays):
        start = number * max_rows_at_once
        end = start + max_rows_at_once
        outputs = condensed({name: x[start:end] for name, x in inputs.items()})
        written = [
            array.write(number, outputs[name])
            for name, array in zip(like, arrays, strict=True)
        ]
        return number + 1, *written

    _, *arrays = tf.while_loop(
        lambda number, *_: number < num_parts,
        body,
        (0, *arrays),
        # Compute one part at a time, to save memory.
        parallel_iterations=1,
    )
    outputs = {
        name: tf.ensure_shape(array.concat(), x.shape)
        for (name, x), array in zip(like.items(), arrays, strict=True)
    }
    if has_two_axes:
        outputs = {
            name: tf.reshape(x, tf.concat([axes, tf.shape(x)[2:]], 0))
            for name, x in outputs.items()
        }
    return outputs


def _set_methods(directory: str, methods: Mapping[str, str]) -> None:
    """Sets method names of signatures; tf.saved_model.save cannot set them."""
    saved = saved_model_pb2.SavedModel()
    path = os.path.join(directory, FILE)
    saved.ParseFromString(files.read_bytes(path))
    for name, method in methods.items():
        saved.meta_graphs[0].signature_def[name].method_name = method
    files.write_bytes(path, saved.SerializeToString(deterministic=True))
    # Write the fingerprint again, as it has a checksum of the changed file.
    fingerprinting_utils.write_fingerprint(directory)


class LitertModule:
    """The graphs and the .tflite file that the server's LiteRT engine runs.

    The .tflite file takes any number of rows of any length. A SavedModel
    without weights packs strings, Examples or ids into rows, and turns the
    model's outputs into answers. Packed rows have the model's inputs, such as
    `input_ids`; tensors for `answer`, such as `state_words`; and `row_lengths`,
    the number of columns that the model must read of each row.

    The model is in its inference form, in float32.

    Raises:
      UserError: If TensorFlow Lite cannot run the model.
    """

    def __init__(self, head: ServingHead, model: keras.Model) -> None:
        if getattr(model, "lstms", None):
            raise UserError(
                "The head must be linear for --litert, as BiLSTMs need "
                "operators that TensorFlow Lite lacks; drop --litert."
            )
        self._head = head
        self._model = model
        # Use a tf.function, stored once even if two signatures call it.
        self._pack_once = tf.function(
            self._pack_strings,
            input_signature=[head.input_specs()],
            autograph=False,
        )
        self._pack = conversion.trace(
            lambda **strings: self._pack_once(strings), head.input_specs()
        )
        packed = _output_specs(self._pack)
        self._model_inputs = [
            name
            for name in packed
            if name != litert.ROW_LENGTHS and not name.startswith(_STATE_PREFIX)
        ]
        self._axes_of_rows = packed[litert.ROW_LENGTHS].shape
        self._model_specs = {
            name: tf.TensorSpec([None, None], packed[name].dtype, name)
            for name in self._model_inputs
        }
        self._outputs = _output_specs(
            conversion.trace(self._compute, self._model_specs)
        )

    def save(self, directory: str, quantization: str) -> bytes:
        """Writes the folder litert/ of a version directory.

        `quantization` is one of `flags.export.LITERT_QUANTIZATIONS`. Returns
        the .tflite file of the model in float32.

        Raises:
          UserError: If TensorFlow Lite cannot run the model.
        """
        tf.saved_model.save(
            tf.Module(),
            os.path.join(directory, litert.FOLDER),
            signatures=self._signatures(),
        )
        exact = conversion.convert(self._compute, self._model_specs)
        content = exact
        if quantization != "none":
            content = conversion.convert(
                self._compute, self._model_specs, quantization
            )
        files.write_bytes(os.path.join(directory, litert.MODEL_FILE), content)
        return exact

    def _signatures(self):
        head, examples = self._head, litert.EXAMPLES
        pack_ids = conversion.trace(self._pack_ids, head.ids_specs())

        def pack_examples(**inputs):
            specs = head.input_specs()
            strings = parse_examples(inputs[examples], specs)
            return self._pack_once(strings)

        functions = {
            litert.PACK_EXAMPLES: (
                pack_examples,
                {examples: tf.TensorSpec([None], tf.string, examples)},
            ),
            litert.ANSWER: (
                lambda **values: head.answer(*self._restore(values)),
                self._answer_specs(_output_specs(self._pack)),
            ),
            litert.ANSWER_IDS: (
                lambda **values: head.answer_ids(*self._restore(values)),
                self._answer_specs(_output_specs(pack_ids)),
            ),
            litert.TOKENIZE: (
                functools.partial(tokenize, head),
                TOKENIZE_SPECS,
            ),
        }
        traced = {x: conversion.trace(*y) for x, y in functions.items()}
        return {litert.PACK: self._pack, litert.PACK_IDS: pack_ids} | traced

    def _answer_specs(self, packed: _Specs) -> _Specs:
        """Returns the inputs of `answer`: packed rows and model outputs."""
        specs = {
            name: spec
            for name, spec in packed.items()
            if name != litert.ROW_LENGTHS
        }
        for name, spec in self._outputs.items():
            key = f"{litert.OUTPUT_PREFIX}{name}"
            # The model's outputs are [R, ...]. The server replaces axis R by
            # the axes of `row_lengths`.
            shape = self._axes_of_rows.concatenate(spec.shape[1:])
            specs[key] = tf.TensorSpec(shape, spec.dtype, key)
        return specs

    def _pack_strings(self, strings: TensorMap) -> dict[str, tf.Tensor]:
        rows = self._head.pack(check_rows(strings))
        return _flatten(rows, self._head.reads_padding)

    def _pack_ids(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        checks = self._check_ids(inputs)
        rows = self._head.ids_rows(after(checks, inputs))
        has_token_outputs = len(self._model_inputs) == len(
            self._head.ids_specs()
        ) and any(
            spec.shape.rank > 1 and spec.shape[1] is None
            for spec in self._outputs.values()
        )
        # Clients expect an output for each id, so padding is computed, too.
        return _flatten(rows, whole=has_token_outputs)

    def _check_ids(self, inputs: TensorMap) -> list[tf.Operation]:
        """Returns assertions with clearer messages than LiteRT's own."""
        config = self._model.bert_config
        ids = inputs[INPUT_IDS.name]
        shape = tf.shape(ids)
        longest = config.max_position_embeddings
        checks = [
            tf.debugging.assert_equal(
                tf.shape(x),
                shape,
                f"`{name}` must have the shape of `input_ids`.",
            )
            for name, x in inputs.items()
        ]
        for values, least, most, subject in (
            (shape[-1], 1, longest, "The number of tokens of a row"),
            (ids, 0, config.vocab_size - 1, "`input_ids`"),
        ):
            checks.append(_assert_between(values, least, most, subject))
        return [*checks, check_segments(self._model, inputs)]

    def _compute(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns what `condense` keeps, for <int32>[R, T] or [R, masks]."""
        if self._axes_of_rows.rank == 1:
            return self._head.condense(self._model(inputs, training=False))
        # The model expects [B, choices, T]: turn [R, T] into [R, 1, T].
        inputs = {name: tf.expand_dims(x, 1) for name, x in inputs.items()}
        kept = self._head.condense(self._model(inputs, training=False))
        return {name: tf.squeeze(x, 1) for name, x in kept.items()}

    def _restore(self, values: TensorMap) -> tuple[dict, Rows]:
        """Returns the model's outputs and the rows that `_flatten` received."""
        rows = Rows(
            {name: values[name] for name in self._model_inputs},
            _strip(values, _STATE_PREFIX),
        )
        return _strip(values, litert.OUTPUT_PREFIX), rows


def _flatten(rows: Rows, whole: bool) -> dict[str, tf.Tensor]:
    """Returns the tensors of rows under flat names, with `row_lengths`.

    `row_lengths` <int32>[R] are the numbers of columns up to the last token of
    each row: 4 for the mask [1, 1, 0, 1, 0]. If `whole`, all are T.
    """
    mask = rows.inputs[INPUT_MASK.name]
    length = tf.shape(mask)[-1]
    last = tf.reduce_max(tf.where(mask > 0, tf.range(length) + 1, 0), -1)
    # Rows without tokens keep all T columns: the model cannot read 0 columns.
    lengths = tf.where((last == 0) | whole, length, last)
    state = {f"{_STATE_PREFIX}{name}": x for name, x in rows.state.items()}
    return {**rows.inputs, **state, litert.ROW_LENGTHS: lengths}


def _strip(values: TensorMap, prefix: str) -> dict[str, tf.Tensor]:
    return {
        name.removeprefix(prefix): x
        for name, x in values.items()
        if name.startswith(prefix)
    }


def _output_specs(function) -> _Specs:
    return {
        name: tf.TensorSpec(x.shape, x.dtype, name)
        for name, x in function.structured_outputs.items()
    }
