"""The engine that runs the encoder in LiteRT, and TensorFlow around it.

In the folder litert/ of a version lie the model as a .tflite file and a
SavedModel without weights, of which one signature makes the model's inputs of
strings and another one answers of its outputs. What can be asked is what the
saved_model.pb of the version itself says; its weights are never read.
"""

import os
from collections.abc import Collection
from collections.abc import Mapping

import numpy as np
from tensorflow.core.protobuf import meta_graph_pb2

from bert_tf.errors import UserError
from bert_tf.serving import errors
from bert_tf.serving import saved_model
from bert_tf.serving.lite_rows import LiteRows
from bert_tf.serving.saved_model import SavedModel
from bert_tf.serving.saved_model import SavedModelEngine
from bert_tf.serving.servable import DEFAULT_SIGNATURE
from bert_tf.serving.servable import Engine
from bert_tf.serving.servable import Servable
from bert_tf.serving.servable import Signature

FOLDER = "litert"
MODEL_FILE = os.path.join(FOLDER, "model.tflite")
# What the signatures of its SavedModel are called, and their tensors beside
# those that the model takes.
PACK, PACK_IDS, PACK_EXAMPLES = "pack", "pack_ids", "pack_examples"
ANSWER, ANSWER_IDS = "answer", "answer_ids"
TOKENIZE = "tokenize"
EXAMPLES = "examples"
ROW_LENGTHS = "row_lengths"
OUTPUT_PREFIX = "output_"
# Which of them stand before and behind the model, by what is asked.
_WAYS = {
    DEFAULT_SIGNATURE: (PACK, ANSWER),
    "from_ids": (PACK_IDS, ANSWER_IDS),
    "from_examples": (PACK_EXAMPLES, ANSWER),
    "classify": (PACK_EXAMPLES, ANSWER),
    "regress": (PACK_EXAMPLES, ANSWER),
}


class Litert(Servable):
    """A version of a model whose encoder runs in LiteRT.

    Args:
      name: The model's name.
      version: The version's number.
      signature_defs: What can be asked; what only the weights of the
        SavedModel can answer, such as `attention`, is left out.
      graph: What stands around the model.
      rows: The model.
    """

    def __init__(
        self,
        name: str,
        version: int,
        signature_defs: Mapping[str, meta_graph_pb2.SignatureDef],
        graph: SavedModel,
        rows: LiteRows,
    ) -> None:
        self._signature_defs = {
            key: definition
            for key, definition in signature_defs.items()
            if key in _WAYS or key == TOKENIZE
        }
        self._graph = graph
        self._rows = rows
        super().__init__(
            name, version, saved_model.read_signatures(self._signature_defs)
        )

    def signature_defs(self) -> Mapping[str, meta_graph_pb2.SignatureDef]:
        return self._signature_defs

    def run(
        self,
        signature: Signature,
        inputs: Mapping[str, np.ndarray],
        outputs: Collection[str],
    ) -> dict[str, np.ndarray]:
        if signature.name == TOKENIZE:
            return self._call(TOKENIZE, inputs, outputs)
        pack, answer = _WAYS[signature.name]
        if pack == PACK_EXAMPLES:
            # Which signatures call by different names.
            (serialized,) = inputs.values()
            inputs = {EXAMPLES: serialized}
        packed = self._call(pack, inputs)
        computed = self._rows.run(packed, packed[ROW_LENGTHS])
        named = {f"{OUTPUT_PREFIX}{name}": x for name, x in computed.items()}
        return self._call(answer, packed | named, outputs)

    def close(self) -> None:
        self._graph.close()
        del self._rows  # Its weights' memory goes with it.

    def _call(
        self,
        name: str,
        values: Mapping[str, np.ndarray],
        outputs: Collection[str] | None = None,
    ) -> dict[str, np.ndarray]:
        """Returns outputs, by default all, of a signature of the graph."""
        signature = self._graph.signatures[name]
        return self._graph.run(
            signature,
            {key: values[key] for key in signature.inputs},
            tuple(signature.outputs if outputs is None else outputs),
        )


class LitertEngine(Engine):
    """Loads versions that were exported with --litert.

    Args:
      num_threads: Threads that compute a row in LiteRT, and operators of
        TensorFlow; 0 means one a core.
      inter_op_threads: Operators of TensorFlow at once; likewise.
    """

    def __init__(self, num_threads: int = 0, inter_op_threads: int = 0) -> None:
        self._num_threads = num_threads or os.cpu_count() or 1
        self._around = SavedModelEngine(num_threads, inter_op_threads)

    def load(self, name: str, version: int, directory: str) -> Litert:
        if not os.path.isdir(os.path.join(directory, FOLDER)):
            raise errors.failed_precondition(
                f"{directory} must have a folder {FOLDER}/ to be served with "
                "--engine=litert; write a version that has it with "
                "export/savedmodel.py --litert, or serve this one with "
                "--engine=savedmodel."
            )
        path = os.path.join(directory, MODEL_FILE)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise errors.not_found(f"Cannot read {path}: {error}.") from error
        return self.load_content(name, version, directory, content)

    def load_content(
        self, name: str, version: int, directory: str, content: bytes
    ) -> Litert:
        """Loads a version with another model than that in its folder.

        Args:
          name: The model's name.
          version: The version's number.
          directory: Where it lies.
          content: The bytes of the .tflite file.

        Raises:
          RequestError: If it cannot be loaded.
        """
        signature_defs = saved_model.read_signature_defs(directory)
        try:
            rows = LiteRows(content, self._num_threads)
        except (UserError, RuntimeError, ValueError) as error:
            raise errors.invalid(
                f"Not a model to serve: {os.path.join(directory, MODEL_FILE)}. "
                f"{error}"
            ) from error
        graph = self._around.load(
            name, version, os.path.join(directory, FOLDER)
        )
        return Litert(name, version, signature_defs, graph, rows)

    def missing(self, directory: str) -> str | None:
        if not os.path.isfile(
            os.path.join(directory, saved_model.MODEL_FILES[0])
        ):
            return saved_model.MODEL_FILES[0]
        folder = os.path.join(directory, FOLDER)
        # Without one it is whole, and cannot be served: `load` says why.
        if not os.path.isdir(folder):
            return None
        if not os.path.isfile(os.path.join(directory, MODEL_FILE)):
            return MODEL_FILE
        lacking = self._around.missing(folder)
        return lacking and os.path.join(FOLDER, lacking)
