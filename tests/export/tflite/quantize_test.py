"""Tests for export.on_device.calibration: int8 by what activations are."""

import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema

from bert_tf.export.tflite import calibration_data
from bert_tf.export.tflite import convert as conversion
from bert_tf.export.tflite.ids_function import IdsFunction
from bert_tf.inference.lite_model import LiteModel
from tests.support import eval_files


def _operators_in_int8(content):
    """Returns the names of those that give int8, and do not get float32."""
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    names = {v: k for k, v in vars(schema.BuiltinOperator).items()}
    found = set()
    for graph in model.subgraphs:
        for operator in graph.operators:
            given, gets = (
                graph.tensors[tensors[0]].type
                for tensors in (operator.outputs, operator.inputs)
            )
            if (
                given == schema.TensorType.INT8
                and gets != schema.TensorType.FLOAT32
            ):
                code = model.operatorCodes[operator.opcodeIndex]
                found.add(names[code.builtinCode])
    return found


class CalibrationTest(tf.test.TestCase):
    def test_dense_layers_compute_in_int8_and_what_is_delicate_does_not(self):
        build = eval_files.prepare(
            "classification",
            quantization="full_int8",
            representative_file=eval_files.write("classification"),
        )
        rows = list(calibration_data.read(build)())
        self.assertGreater(len({x["input_ids"].shape for x in rows}), 3)
        function = IdsFunction(build)
        content = conversion.convert(
            function, function.specs, "full_int8", lambda: rows
        )
        found = _operators_in_int8(content)
        self.assertIn("FULLY_CONNECTED", found)
        self.assertNoCommonElements(
            found,
            ["SOFTMAX", "ADD", "MUL", "MEAN", "GELU", "ONE_HOT"],
        )
        model = LiteModel(content)
        like = LiteModel(eval_files.make("classification"))
        for inputs in rows:
            ours, theirs = (
                x.run(inputs)["probabilities"] for x in (model, like)
            )
            self.assertEqual(ours.dtype, np.float32)
            self.assertAllClose(ours, theirs, atol=0.1)


if __name__ == "__main__":
    tf.test.main()
