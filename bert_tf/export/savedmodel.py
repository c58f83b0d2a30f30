"""Exports a model directory as a SavedModel with serving signatures.

Shapes:
  B: batch size.
  R: rows of the model, on one axis or two.
  T: row length.
  P: predicted tokens per row.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from bert_tf import errors
from bert_tf import keras_backend
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.distribute import packed_weights
from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export import assets_extra
from bert_tf.export import serving_module
from bert_tf.export.artifact import Artifact
from bert_tf.export.heads import registry
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import ServingHead
from bert_tf.export.serving_module import ServingModule
from bert_tf.export.tflite import convert as conversion
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.flags import cli
from bert_tf.flags.export import SavedModelConfig
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.io import terminal
from bert_tf.modeling import inference
from bert_tf.serving import litert

_SCRIPT = "export/savedmodel.py"
_IDS_SUFFIX = "_ids"
_STATE_PREFIX = "state_"

_Tensors = Mapping[str, tf.Tensor]
_Specs = dict[str, tf.TensorSpec]


@dataclasses.dataclass(frozen=True)
class Export:
    """A model that is ready to be saved.

    Attributes:
      name: The name of the head, a key of `registry.ENTRIES`.
      model: The model, in its inference form.
      precision: "float32" or "bfloat16".
    """

    config: SavedModelConfig
    stored: StoredModel
    name: str
    head: ServingHead
    model: keras.Model
    precision: str

    def artifact(self, version: int, ids_only: bool) -> Artifact:
        """Returns the description of the resulting export."""
        name = self.config.served_name
        return Artifact(
            model_name=f"{name}{_IDS_SUFFIX}" if ids_only else name,
            version=version,
            head=self.name,
            precision=self.precision,
            ids_only=ids_only,
            max_seq_length=self.head.max_seq_length,
            buckets=self.head.buckets,
            settings=self.head.settings(),
            command=command_line(_SCRIPT, self.config, self.stored),
            litert=None if ids_only else self.config.quantization_of_litert,
        )


def command_line(script: str, config: Any, stored: StoredModel) -> str:
    """Returns the command that repeats an export."""
    if stored.origin is not None:
        config = dataclasses.replace(config, model_dir="MODEL_DIR")
    return cli.command_line(script, config)


def run(config: SavedModelConfig, origin: str | None = None) -> None:
    """Runs export/savedmodel.py: writes a version, and prints how to use it.

    Args:
      config: The flags.
      origin: What reports name as the source if --model_dir is temporary.

    Raises:
      UserError: If flags or model are invalid, or verification fails.
    """
    for path, (artifact, example) in write(config, origin).items():
        logging.info("Wrote %s.", path)
        assets_extra.publish(path, artifact, example)


def write(
    config: SavedModelConfig, origin: str | None = None
) -> dict[str, tuple[Artifact, dict[str, Any]]]:
    """Writes a verified version, with --ids_only in two folders.

    Args: As for `run`.

    Returns:
      The path of each folder, with its description and an example of a row.

    Raises:
      UserError: If flags or model are invalid, or verification fails.
    """
    keras_backend.require_tensorflow()
    if config.quantization_of_litert:
        errors.require("tflite")
    targets = {config.output_dir: False}
    if config.ids_only:
        targets[config.output_dir.rstrip("/") + _IDS_SUFFIX] = True
    for output_dir in targets:
        files.require_writable_folder(output_dir, "--output_dir")
    with contextlib.ExitStack() as stack:
        for output_dir in targets:
            stack.enter_context(locks.one_writer(output_dir, "--output_dir"))
        version = artifacts.choose_version(config.version, list(targets))
        export = prepare(config, origin)
        made = {}
        # No version directory appears before all of them are complete.
        for output_dir, ids_only in targets.items():
            artifact = export.artifact(version, ids_only)
            temporary = stack.enter_context(
                artifacts.write_version(output_dir, version)
            )
            exact_litert = None
            # TensorFlow logs each step of saving.
            with terminal.below(logging.WARNING):
                ServingModule(
                    export.head, export.model, artifact.ids_only
                ).save(temporary)
                if artifact.litert is not None:
                    exact_litert = _save_litert(
                        temporary, export, artifact.litert
                    )
            example = assets_extra.complete(
                temporary, artifact, export.head, export.stored, exact_litert
            )
            made[os.path.join(output_dir, str(version))] = artifact, example
    return made


def prepare(config: SavedModelConfig, origin: str | None = None) -> Export:
    """Loads the model and resolves the head, the precision and the buckets.

    Args: As for `run`.

    Raises:
      UserError: If the flags do not fit the model.
    """
    stored = checkpoint_loading.read(config.model_dir, flag="--model_dir")
    stored = dataclasses.replace(stored, origin=origin)
    name, head = registry.build(config, stored)
    precision = config.precision
    if precision == "auto":
        precision = "bfloat16" if packed_weights.bfloat16_flags() else "float32"
    model = _build_model(stored, head, precision)
    return Export(config, stored, name, head, model, precision)


def _build_model(
    stored: StoredModel, head: ServingHead, precision: str
) -> keras.Model:
    """Builds the part of a model that a head reads, in its inference form."""
    model = checkpoint_loading.build_model(
        stored, head.model_kind, return_attention_probs=True
    )
    return inference.prepare(model, precision, **head.model_values)


def _save_litert(directory: str, export: Export, quantization: str) -> bytes:
    """Writes litert/ and returns the .tflite file of the model in float32."""
    model = export.model
    if export.precision != "float32":
        model = _build_model(export.stored, export.head, "float32")
    return LitertModule(export.head, model).save(directory, quantization)


class LitertModule:
    """The graphs and the .tflite file that the server's LiteRT engine runs.

    The .tflite file takes any number of rows of any length. A SavedModel
    without weights surrounds it. Its signatures convert strings, Examples or
    ids to rows, and the model's outputs to answers. The tensors between the two
    have flat names: the model's inputs keep theirs, `row_lengths` is the number
    of columns of each row that the model must read, and the state that `answer`
    needs has a prefix.

    Args:
      head: Converts strings to the model's inputs, and its outputs to answers.
      model: The model in its inference form, in float32.

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
        # Two signatures call it, but the graph holds it once.
        self._pack_once = tf.function(
            self._pack_strings,
            input_signature=[head.input_specs()],
            autograph=False,
        )
        self._pack = serving_module.trace(
            lambda **strings: self._pack_once(strings), head.input_specs()
        )
        packed = _specs_of(self._pack)
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
        self._outputs = _specs_of(
            serving_module.trace(self._compute, self._model_specs)
        )

    def save(self, directory: str, quantization: str) -> bytes:
        """Writes the folder litert/ of a version directory.

        Args:
          directory: The version directory.
          quantization: One of `flags.export.LITERT_QUANTIZATIONS`.

        Returns:
          The .tflite file of the model in float32.

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
        pack_ids = serving_module.trace(self._pack_ids, head.ids_specs())

        def pack_examples(**inputs):
            specs = head.input_specs()
            strings = serving_module.parse_examples(inputs[examples], specs)
            return self._pack_once(strings)

        functions = {
            litert.PACK_EXAMPLES: (
                pack_examples,
                {examples: serving_module.examples_spec(examples)},
            ),
            litert.ANSWER: (
                lambda **values: head.answer(*self._restore(values)),
                self._answer_specs(_specs_of(self._pack)),
            ),
            litert.ANSWER_IDS: (
                lambda **values: head.answer_ids(*self._restore(values)),
                self._answer_specs(_specs_of(pack_ids)),
            ),
            litert.TOKENIZE: (
                functools.partial(serving_module.tokenize, head),
                serving_module.TOKENIZE_SPECS,
            ),
        }
        traced = {x: serving_module.trace(*y) for x, y in functions.items()}
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
            # The server restores the original axes of the rows.
            shape = self._axes_of_rows.concatenate(spec.shape[1:])
            specs[key] = tf.TensorSpec(shape, spec.dtype, key)
        return specs

    def _pack_strings(self, strings: _Tensors) -> dict[str, tf.Tensor]:
        rows = self._head.pack(serving_module.check_rows(strings))
        return _flatten(rows, self._head.reads_padding)

    def _pack_ids(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        checks = self._check_ids(inputs)
        rows = self._head.ids_rows(serving_module.after(checks, inputs))
        has_token_outputs = len(self._model_inputs) == len(
            self._head.ids_specs()
        ) and any(
            spec.shape.rank > 1 and spec.shape[1] is None
            for spec in self._outputs.values()
        )
        # Clients that send padding get outputs for padding, too.
        return _flatten(rows, whole=has_token_outputs)

    def _check_ids(self, inputs: _Tensors) -> list[tf.Operation]:
        """Returns assertions with clearer messages than LiteRT's own."""
        config = self._model.bert_config
        ids = inputs[INPUT_IDS.name]
        shape = tf.shape(ids)
        checks = [
            tf.debugging.assert_equal(
                tf.shape(x),
                shape,
                f"`{name}` must have the shape of `input_ids`.",
            )
            for name, x in inputs.items()
        ]
        longest = config.max_position_embeddings
        checks += [
            tf.debugging.assert_less_equal(
                shape[-1], longest, f"Rows must have at most {longest} tokens."
            ),
            tf.debugging.assert_positive(
                shape[-1], "Rows must have at least one token."
            ),
            tf.debugging.assert_non_negative(
                ids, "`input_ids` must not be negative."
            ),
            tf.debugging.assert_less(
                ids,
                config.vocab_size,
                f"`input_ids` must be less than {config.vocab_size}.",
            ),
            serving_module.check_segments(self._model, inputs),
        ]
        return checks

    def _compute(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns outputs for inputs <int32>[R, T] or [R, P]."""
        if self._axes_of_rows.rank == 1:
            return self._head.condense(self._model(inputs, training=False))
        # The model takes rows on two axes.
        inputs = {name: tf.expand_dims(x, 1) for name, x in inputs.items()}
        kept = self._head.condense(self._model(inputs, training=False))
        return {name: tf.squeeze(x, 1) for name, x in kept.items()}

    def _restore(self, values: _Tensors) -> tuple[dict, Rows]:
        """Returns the model's outputs and the rows that `_flatten` received."""
        rows = Rows(
            {name: values[name] for name in self._model_inputs},
            _strip(values, _STATE_PREFIX),
        )
        return _strip(values, litert.OUTPUT_PREFIX), rows


def _flatten(rows: Rows, whole: bool) -> dict[str, tf.Tensor]:
    """Returns the tensors of rows under flat names, with `row_lengths`.

    If `whole`, the model must read padding, too.
    """
    state = {f"{_STATE_PREFIX}{name}": x for name, x in rows.state.items()}
    return {
        **rows.inputs,
        **state,
        litert.ROW_LENGTHS: _row_lengths(rows.inputs[INPUT_MASK.name], whole),
    }


def _row_lengths(input_mask: tf.Tensor, whole: bool) -> tf.Tensor:
    """Returns <int32>[R], the number of columns up to the last token of a row.

    If `whole`, that is T for every row.
    """
    length = tf.shape(input_mask)[-1]
    places = tf.where(input_mask > 0, tf.range(length) + 1, 0)
    last = tf.reduce_max(places, -1)
    # Rows of padding only are read whole.
    return tf.where((last == 0) | whole, length, last)


def _strip(values: _Tensors, prefix: str) -> dict[str, tf.Tensor]:
    return {
        name.removeprefix(prefix): x
        for name, x in values.items()
        if name.startswith(prefix)
    }


def _specs_of(function) -> _Specs:
    """Returns the output specs of a traced function."""
    return {
        name: tf.TensorSpec(x.shape, x.dtype, name)
        for name, x in function.structured_outputs.items()
    }
