"""The LiteRT engine: runs the encoder in LiteRT, the rest in TensorFlow.

The folder litert/ of a version has the model as a .tflite file, and a
SavedModel without weights. One signature of the SavedModel in litert/ turns
strings into the model's inputs, and another turns the model's outputs into
predictions. From saved_model.pb in the version's folder, the server reads the
signatures for clients, but no weights.

Shapes:
  R: number of rows; for multiple choice, the two axes [examples, choices].
  T: the length that the rows are padded to.
  P: number of masked tokens to predict in each row.
"""

import os
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from bert_tf.errors import UserError
from bert_tf.features import INPUT_IDS
from bert_tf.inference.lite_model import LiteModel
from bert_tf.io import files
from bert_tf.serving import errors
from bert_tf.serving import saved_model
from bert_tf.serving.saved_model import SavedModel
from bert_tf.serving.saved_model import SavedModelEngine
from bert_tf.serving.servable import DEFAULT_SIGNATURE
from bert_tf.serving.servable import TOKENIZE
from bert_tf.serving.servable import Arrays
from bert_tf.serving.servable import Signature
from bert_tf.serving.servable import Stop

FOLDER = "litert"
MODEL_FILE = os.path.join(FOLDER, "model.tflite")
# Names of signatures, then of tensors, in the SavedModel in litert/. Each input
# of the .tflite model has the same name as an output of the signature PACK.
PACK, PACK_IDS, PACK_EXAMPLES = "pack", "pack_ids", "pack_examples"
ANSWER, ANSWER_IDS = "answer", "answer_ids"
EXAMPLES = "examples"
ROW_LENGTHS = "row_lengths"
OUTPUT_PREFIX = "output_"
# Maps a client's signature to the steps before and after the .tflite model.
_SIGNATURE_STEPS = {
    DEFAULT_SIGNATURE: (PACK, ANSWER),
    "from_ids": (PACK_IDS, ANSWER_IDS),
    "from_examples": (PACK_EXAMPLES, ANSWER),
    "classify": (PACK_EXAMPLES, ANSWER),
    "regress": (PACK_EXAMPLES, ANSWER),
}

_POSITIONS = "masked_lm_positions"
# Maximum tokens per call, including padding, except for a single longer row.
# Larger calls are not faster, as they do not fit in the CPU's caches.
_TOKENS_PER_CALL = 128
# Maximum padding of a row, in tokens. A call has a fixed cost, equal to about 8
# tokens of BERT-base, so more padding would cost more than another call.
_MAX_PADDING = 8


def run_rows(
    model: LiteModel,
    inputs: Arrays,
    lengths: np.ndarray,
    stop: Stop | None = None,
) -> dict[str, np.ndarray]:
    """Runs a .tflite model on rows, with rows of similar length in one call.

    Args:
      model: The model, with inputs such as `input_ids` <int32>[R, T] and maybe
        `masked_lm_positions` <int32>[R, P]. If the second axis of an output is
        variable, it has length P in models with `masked_lm_positions`, else T.
      inputs: Arrays [R, T] and [R, P] by name; unneeded names are ignored.
      lengths: <int32>[R], the number of tokens to compute in each row; outputs
        for later tokens are undefined.
      stop: Lets another thread end `run_rows` between two calls of the model.

    Returns:
      The outputs by name, [R, ...] each.
    """
    count = lengths.size
    rows = {
        name: inputs[name].reshape(count, inputs[name].shape[-1])
        for name in model.inputs
    }
    width = rows.get(_POSITIONS, rows[INPUT_IDS.name]).shape[1]
    outputs = {
        name: np.zeros(
            [count, *(width if n < 0 else n for n in shape[1:])], dtype
        )
        for name, (dtype, shape) in model.outputs.items()
    }
    groups = (
        _group(lengths.ravel()) if all(x.size for x in rows.values()) else ()
    )
    for indices, length in groups:
        if stop:
            stop.check()
        part = {
            name: x[indices] if name == _POSITIONS else x[indices, :length]
            for name, x in rows.items()
        }
        for name, value in model.run(part).items():
            columns = map(slice, value.shape[1:2])
            outputs[name][(indices, *columns)] = value
    return {
        name: x.reshape(*lengths.shape, *x.shape[1:])
        for name, x in outputs.items()
    }


def _group(lengths: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Yields groups of rows of similar length, each with its longest length.

    A group has one row or up to 128 tokens; a row has up to 8 padding tokens.
    Lengths [60, 8, 57, 9] give rows 0, 2 padded to 60, then 3, 1 padded to 9.
    """
    order = np.argsort(-lengths, kind="stable")
    first = 0
    while first < len(order):
        longest = int(lengths[order[first]])
        max_rows = max(1, _TOKENS_PER_CALL // longest)
        indices = order[first : first + max_rows]
        indices = indices[lengths[indices] >= longest - _MAX_PADDING]
        yield indices, longest
        first += len(indices)


class Litert(SavedModel):
    """A version of a model whose encoder runs in LiteRT.

    `directory` has the SavedModel without weights. Ignores signatures in
    `signature_defs` that LiteRT cannot compute, such as `attention`.
    """

    def __init__(
        self,
        name: str,
        version: int,
        directory: str,
        config: config_pb2.ConfigProto,
        model: LiteModel,
        signature_defs: Mapping[str, meta_graph_pb2.SignatureDef],
    ) -> None:
        super().__init__(name, version, directory, config)
        self._model = model
        self._steps = self.signatures
        self.signature_defs = {
            key: definition
            for key, definition in signature_defs.items()
            if key in _SIGNATURE_STEPS or key == TOKENIZE
        }
        self.signatures = saved_model.read_signatures(self.signature_defs)

    def run(
        self,
        signature: Signature,
        inputs: Arrays,
        outputs: Collection[str],
        stop: Stop | None = None,
    ) -> dict[str, np.ndarray]:
        if signature.name == TOKENIZE:
            return self._run_step(TOKENIZE, inputs, outputs, stop)
        pack, answer = _SIGNATURE_STEPS[signature.name]
        if pack == PACK_EXAMPLES:
            # The input's name depends on the signature, so rename the input.
            (serialized,) = inputs.values()
            inputs = {EXAMPLES: serialized}
        packed = self._run_step(pack, inputs, self._steps[pack].outputs, stop)
        computed = run_rows(self._model, packed, packed[ROW_LENGTHS], stop)
        named = {f"{OUTPUT_PREFIX}{name}": x for name, x in computed.items()}
        return self._run_step(answer, packed | named, outputs, stop)

    def close(self) -> None:
        super().close()
        del self._model  # Frees the memory of the weights.

    def _run_step(
        self,
        name: str,
        values: Arrays,
        outputs: Collection[str],
        stop: Stop | None,
    ) -> dict[str, np.ndarray]:
        signature = self._steps[name]
        inputs = {key: values[key] for key in signature.inputs}
        return super().run(signature, inputs, outputs, stop)


class LitertEngine(SavedModelEngine):
    """Loads versions that were exported with --litert.

    `num_threads` compute one call of LiteRT, or one operator of TensorFlow; 0
    means one per core. `SavedModelEngine` describes `inter_op_threads`.
    """

    def __init__(self, num_threads: int = 0, inter_op_threads: int = 0) -> None:
        super().__init__(num_threads, inter_op_threads)
        self._num_threads = num_threads or os.cpu_count() or 1

    def load(
        self,
        name: str,
        version: int,
        directory: str,
        content: bytes | None = None,
    ) -> Litert:
        """Loads a version; `content`, if given, replaces its .tflite file."""
        folder = os.path.join(directory, FOLDER)
        if not os.path.isdir(folder):
            raise errors.failed_precondition(
                f"{directory} must have a folder {FOLDER}/ to be served with "
                "--engine=litert; write a version that has it with "
                "export/savedmodel.py --litert, or serve this one with "
                "--engine=savedmodel."
            )
        path = os.path.join(directory, MODEL_FILE)
        try:
            if content is None:
                with open(path, "rb") as file:
                    content = file.read()
            definitions = saved_model.read_signature_defs(directory)
            # A single interpreter that uses all threads is the fastest choice.
            model = LiteModel(content, self._num_threads)
        except OSError as error:
            raise errors.not_found(f"Cannot read {path}: {error}.") from error
        except (UserError, RuntimeError, ValueError) as error:
            raise errors.invalid(
                f"Not a model to serve: {path}. {error}"
            ) from error
        return Litert(name, version, folder, self._config, model, definitions)

    def missing(self, directory: str) -> str | None:
        name = saved_model.MODEL_FILES[0]
        if not files.is_file(os.path.join(directory, name)):
            return name
        folder = os.path.join(directory, FOLDER)
        # If there is no litert/, do not wait for it: let `load` raise an error.
        if not files.is_folder(folder):
            return None
        if not files.is_file(os.path.join(directory, MODEL_FILE)):
            return MODEL_FILE
        lacking = super().missing(folder)
        return lacking and os.path.join(FOLDER, lacking)
