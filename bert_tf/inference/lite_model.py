"""Runs .tflite files with LiteRT."""

import threading
from collections.abc import Mapping

import numpy as np

from bert_tf import errors
from bert_tf.errors import UserError

_MAGIC = b"TFL3"  # Bytes 4 to 7 of every .tflite file.


class LiteModel:
    """A loaded .tflite file with one signature.

    Several threads may call `run`; a lock makes them take turns.

    Args:
      content: The file's bytes.
      num_threads: Number of threads that compute one call.
      text_operators: Whether the file may contain TF-Text's operators.

    Attributes:
      inputs: Input name to dtype and shape in LiteRT; -1 is a variable size.
      outputs: Output name to dtype and shape.

    Raises:
      UserError: If the bytes are not a .tflite file.
    """

    def __init__(
        self,
        content: bytes,
        num_threads: int = 1,
        text_operators: bool = False,
    ) -> None:
        if content[4:8] != _MAGIC:
            raise UserError(
                "A .tflite file must have TFL3 from its fifth byte on. "
                f"Received: {content[4:8]!r}."
            )
        with errors.extras():
            from ai_edge_litert import interpreter as interpreters
        if text_operators:
            # TF-Text is large, so import it only if it is needed.
            from tensorflow_text.core.pybinds import tflite_registrar

            interpreter = interpreters.InterpreterWithCustomOps(
                model_content=content,
                num_threads=num_threads,
                custom_op_registerers=tflite_registrar.SELECT_TFTEXT_OPS,
            )
        else:
            interpreter = interpreters.Interpreter(
                model_content=content, num_threads=num_threads
            )
        self._runner = interpreter.get_signature_runner()
        self._lock = threading.Lock()
        self.inputs = _specs(self._runner.get_input_details())
        self.outputs = _specs(self._runner.get_output_details())

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs by name; variable axes may have any size."""
        with self._lock:
            return self._runner(**inputs)


def _specs(details) -> dict[str, tuple[type, tuple[int, ...]]]:
    return {
        name: (detail["dtype"], tuple(detail["shape_signature"].tolist()))
        for name, detail in details.items()
    }
