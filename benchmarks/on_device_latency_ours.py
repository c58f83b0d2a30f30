"""The program of this project that on_device_latency.py times.

    python on_device_latency_ours.py SETTINGS

LiteRT runs the files, without TensorFlow.
"""

import json
import sys
import time

import numpy as np
import turns

from bert_tf.inference.lite_model import LiteModel


class _Work:
    def __init__(self, settings):
        self._models = {}
        for quantization, path in settings["files"].items():
            with open(path, "rb") as file:
                self._models[quantization] = LiteModel(
                    file.read(), settings["threads"]
                )
        shape = settings["static_shape"]
        self._inputs = {
            "input_ids": np.resize(np.arange(1, 1000, dtype=np.int32), shape),
            "input_mask": np.ones(shape, np.int32),
            "segment_ids": np.zeros(shape, np.int32),
        }

    def run(self, precision, calls):
        """Returns the seconds of each call."""
        seconds = []
        for _ in range(calls):
            start = time.perf_counter()
            answer = self._models[precision].run(self._inputs)
            seconds.append(time.perf_counter() - start)
            if answer["probabilities"].shape != (1, 2):
                raise ValueError(f"Received: {answer}.")
        return {"seconds": seconds}


if __name__ == "__main__":
    turns.serve(_Work(json.loads(sys.argv[1])).run)
