"""The transformers, onnxruntime and OpenVINO programs of serving_latency.py.

    python serving_latency_peer.py SETTINGS

on_device_latency.py times the same engines, without their tokenizer. The
program runs in an environment with the engines, so it does not import the
project.
"""

import json
import os
import sys

import numpy as np
import transformers
import turns

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def _onnx_path(settings, precision="float32"):
    return os.path.join(settings["folder"], f"{precision}.onnx")


class _Torch:
    """Runs PyTorch, and writes the ONNX file for the other engines."""

    def __init__(self, settings):
        import torch

        torch.set_num_threads(settings["threads"])
        self._torch = torch
        config = transformers.BertConfig(num_labels=2, **settings["shape"])
        model = transformers.BertForSequenceClassification(config).eval()
        self._write_onnx(model, settings)
        self._models = {"float32": model}
        half = transformers.BertForSequenceClassification(config).eval()
        self._models["bfloat16"] = half.to(torch.bfloat16)

    def _write_onnx(self, model, settings):
        torch = self._torch
        # Any number of rows of any length, unless the settings fix the shape.
        shape = settings.get("static_shape")
        ids = torch.ones(shape or [2, 7], dtype=torch.int64)
        names = {} if shape else {0: "batch", 1: "length"}
        path = _onnx_path(settings)
        torch.onnx.export(
            model,
            (ids, ids, ids),
            path,
            input_names=list(INPUTS),
            output_names=["logits"],
            dynamic_axes={name: names for name in INPUTS},
            dynamo=False,
        )

    def run(self, precision, inputs):
        torch = self._torch
        tensors = {k: torch.from_numpy(x) for k, x in inputs.items()}
        with torch.inference_mode():
            logits = self._models[precision](**tensors).logits
        return logits.float().softmax(-1).numpy()


class _OnnxRuntime:
    def __init__(self, settings):
        import onnxruntime
        from onnxruntime import quantization

        quantization.quantize_dynamic(
            _onnx_path(settings), _onnx_path(settings, "int8")
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = settings["threads"]
        self._sessions = {
            precision: onnxruntime.InferenceSession(
                _onnx_path(settings, precision),
                options,
                providers=["CPUExecutionProvider"],
            )
            for precision in ("float32", "int8")
        }

    def run(self, precision, inputs):
        return self._sessions[precision].run(None, inputs)[0]


class _OpenVino:
    def __init__(self, settings):
        import openvino

        core = openvino.Core()
        self._models = {
            precision: core.compile_model(
                _onnx_path(settings),
                "CPU",
                {
                    "INFERENCE_PRECISION_HINT": hint,
                    "INFERENCE_NUM_THREADS": settings["threads"],
                    "PERFORMANCE_HINT": "LATENCY",
                },
            )
            for precision, hint in (("float32", "f32"), ("bfloat16", "bf16"))
        }

    def run(self, precision, inputs):
        return self._models[precision](inputs)[0]


ENGINES = {
    "transformers": _Torch,
    "onnxruntime": _OnnxRuntime,
    "openvino": _OpenVino,
}


class _Work:
    def __init__(self, settings):
        self._engine = ENGINES[settings["framework"]](settings)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(
            settings["tokenizer"]
        )
        self._max_seq_length = settings["max_seq_length"]

    def run(self, precision, batches):
        """Returns the seconds of each batch."""

        def call(rows):
            inputs = self._tokenizer(
                *[list(texts) for texts in zip(*rows, strict=True)],
                padding=True,
                truncation=True,
                max_length=self._max_seq_length,
                return_tensors="np",
            )
            inputs = {k: np.asarray(inputs[k], np.int64) for k in INPUTS}
            return self._engine.run(precision, inputs)

        return turns.time_calls(call, batches)


if __name__ == "__main__":
    turns.serve(_Work(json.loads(sys.argv[1])).run)
