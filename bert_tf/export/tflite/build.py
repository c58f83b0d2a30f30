"""A build of a .tflite file: the model, the settings and the function.

The function takes token ids, or strings. TensorFlow Lite has operators to
tokenize strings, but none to cut words out of a text. So heads that find words
in a text return the offsets of each token, and clients cut out the words.

Shapes:
  B: number of texts or pairs of texts.
  R: rows.
  T: tokens per row.
  C: number of choices, only for multiple choice.
"""

import copy
import dataclasses
from collections.abc import Callable

import keras
import tensorflow as tf
from absl import logging

from bert_tf.errors import UserError
from bert_tf.export import savedmodel
from bert_tf.export import serving_module
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import ServingHead
from bert_tf.flags.export import SavedModelConfig
from bert_tf.flags.export import TfliteConfig
from bert_tf.tasks.task import TensorMap
from bert_tf.text import packing
from bert_tf.text.tokenizer import LiteTokenizer

# Outputs that .tflite files omit. The Task Library rejects classifiers with
# several outputs, and MediaPipe reads each output as class scores.
OMITTED_FOR_IDS = ("logits",)

# These heads find parts of a text, so files that take text return byte offsets.
HEADS_WITH_OFFSETS = ("tagging", "question_answering")

_SCRIPT = "export/tflite.py"
# Flags that export/tflite.py shares with export/savedmodel.py.
_SHARED = ("model_dir", "max_seq_length", "head", "pair", "pooling")
_SHARED += ("layer", "normalize", "top_k")
_NONE = -1


@dataclasses.dataclass(frozen=True)
class Build(savedmodel.Export):
    """The model, in float32, and the settings of a .tflite file.

    If the file takes strings, the function `adapt` limits the head to operators
    of TensorFlow Lite, to rows of a fixed length, and to one row per text.
    """

    config: TfliteConfig

    @property
    def takes_text(self) -> bool:
        """True if the inputs are strings."""
        return self.config.input == "text"

    @property
    def command(self) -> str:
        """The command line that reproduces the file."""
        return savedmodel.command_line(_SCRIPT, self.config, self.stored.origin)


def prepare(config: TfliteConfig, origin: str | None = None) -> Build:
    """Loads the model and resolves the head and its settings.

    Raises:
      UserError: If the flags do not fit the model, or TensorFlow Lite cannot
        run the model.
    """
    shared = {name: getattr(config, name) for name in _SHARED}
    export = savedmodel.prepare(
        SavedModelConfig(
            output_dir=config.output_file,
            model_name="model",  # Unused.
            **shared,
        ),
        origin,
    )
    is_classifier = export.name == "classification" and config.input == "ids"
    if is_classifier and not config.dynamic_shapes:
        # Set the shape, because MediaPipe needs fixed shapes.
        config = dataclasses.replace(
            config,
            batch_size=config.batch_size or 1,
            max_seq_length=config.max_seq_length or export.head.max_seq_length,
        )
    _require_form(config, export.model)
    return Build(**vars(export), config=config)


def _require_form(config: TfliteConfig, model: keras.Model) -> None:
    """Raises `UserError` for models that TensorFlow Lite cannot run."""
    is_free = config.input == "ids" and config.max_seq_length is None
    if getattr(model, "lstms", None) and (config.batch_size is None or is_free):
        raise UserError(
            "A head with BiLSTMs can be converted only for a fixed number of "
            "rows of a fixed length; set --batch_size and "
            f"--max_seq_length. Received: {config.batch_size} and "
            f"{config.max_seq_length} for the model in {config.model_dir}."
        )


def adapt(build: Build) -> Build:
    """Adapts a build with strings to the operators of TensorFlow Lite.

    Raises:
      UserError: If TensorFlow Lite cannot run the head or the tokenizer.
    """
    if build.name == "fill_mask":
        raise UserError(
            "TensorFlow Lite has no operator to find [MASK] in text, so "
            "--input=text cannot fill masks; use --input=ids."
        )
    if build.config.quantization == "full_int8":
        raise UserError(
            "--quantization=full_int8 is calibrated on ids, so it needs "
            "--input=ids. Received: --input=text; --quantization=dynamic is "
            "as small."
        )
    head = copy.copy(build.head)
    head.tokenizer = LiteTokenizer(head.tokenizer)
    head.buckets = (head.max_seq_length,)
    if head.settings().get("doc_stride"):
        logging.warning(
            "The file truncates texts to %d tokens, where the model cuts long "
            "texts into windows.",
            head.max_seq_length,
        )
    if hasattr(head, "doc_stride"):
        head.doc_stride = None
    return dataclasses.replace(build, head=head)


def make_function(
    build: Build,
) -> tuple[Callable[..., dict[str, tf.Tensor]], dict[str, tf.TensorSpec]]:
    """Returns the function that a file computes, and its input specs by name.

    The inputs are strings <string>[B] and choices <string>[B, C], or ids in
    `input_ids`, `input_mask` and `segment_ids`, each <int32>[R, T] or
    [R, C, T]. Specs have None for a free dimension. With ids, the outputs are
    as in an --ids_only export, without `OMITTED_FOR_IDS`. With strings,
    `HEADS_WITH_OFFSETS` return logits or probabilities per token, and byte
    offsets `starts` and `ends` <int32>[B, T], -1 for tokens outside the text.
    """
    head, model = build.head, build.model

    def answer_ids(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        answer = serving_module.answer_ids_in_numbers(head, model, inputs)
        return {x: t for x, t in answer.items() if x not in OMITTED_FOR_IDS}

    def answer(**strings: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = pack(build, strings)
        outputs = serving_module.compute(model, rows.inputs)
        if build.name in HEADS_WITH_OFFSETS:
            return head.answer_ids(outputs, rows) | rows.state
        return serving_module.for_predict(head, head.answer(outputs, rows))

    specs = head.input_specs() if build.takes_text else head.ids_specs()
    shaped = {}
    for name, spec in specs.items():
        shape = [build.config.batch_size, *spec.shape[1:]]
        if not build.takes_text:
            shape[-1] = build.config.max_seq_length
        shaped[name] = tf.TensorSpec(shape, spec.dtype, name)
    return answer if build.takes_text else answer_ids, shaped


def pack(build: Build, strings: TensorMap) -> Rows:
    """Packs strings; for `HEADS_WITH_OFFSETS`, `Rows.state` has offsets."""
    # `reshape` raises an error if inputs differ in their numbers of rows. A
    # single row would otherwise be broadcast to the rows of another input.
    count = tf.shape(next(iter(strings.values())))[:1]
    strings = {
        name: tf.reshape(x, tf.concat([count, tf.shape(x)[1:]], 0))
        for name, x in strings.items()
    }
    if build.name in HEADS_WITH_OFFSETS:
        return _pack_with_offsets(build.head, **strings)
    if build.name == "multiple_choice":
        return build.head.pack(strings, by_tokens=True)
    return build.head.pack(strings)


def _pack_with_offsets(head: ServingHead, **strings: tf.Tensor) -> Rows:
    """Packs texts, or questions with contexts, truncating long ones."""
    *questions, text = (strings[name] for name in head.inputs)
    first = [head.tokenizer.tokenize(x) for x in questions]
    ids, starts, ends = head.tokenizer.tokenize_with_offsets(text)

    def truncate(lengths, room):
        kept = tf.minimum(lengths[0], head.task.max_query_length)
        return [kept, tf.minimum(lengths[1], room - kept)]

    segments, num_tokens = packing.find_segments([*first, ids])
    layout = packing.lay_out(
        segments, num_tokens, head.buckets, *([truncate] if questions else [])
    )
    before = [x.flat_values for x in first]
    nowhere = [tf.fill([tf.size(x)], _NONE) for x in before]
    all_ids = tf.concat([*before, ids.flat_values], 0)
    state = {}
    for name, values in (("starts", starts), ("ends", ends)):
        values = tf.concat([*nowhere, values.flat_values], 0)
        state[name] = layout.place(values, _NONE, _NONE, _NONE)
    return Rows(layout.inputs(all_ids, head.tokenizer.vocabulary), state)
