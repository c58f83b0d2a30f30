"""The onnxruntime and OpenVINO programs that on_device_latency.py times.

    python on_device_latency_peer.py SETTINGS

It runs in an environment with these engines, so it does not import the project.
"""

import json
import sys
import time

import numpy as np
import serving_latency_peer
import turns


class _Work:
    def __init__(self, settings):
        engine = serving_latency_peer.ENGINES[settings["framework"]]
        self._engine = engine(settings)
        shape = settings["static_shape"]
        values = (np.resize(np.arange(1, 1000), shape), np.ones(shape))
        self._inputs = {
            name: np.asarray(x, np.int64)
            for name, x in zip(
                serving_latency_peer.INPUTS,
                (*values, np.zeros(shape)),
                strict=True,
            )
        }

    def run(self, precision, calls):
        """Returns the seconds of each call."""
        seconds = []
        for _ in range(calls):
            start = time.perf_counter()
            answer = self._engine.run(precision, self._inputs)
            seconds.append(time.perf_counter() - start)
            if answer.shape != (1, 2):
                raise ValueError(f"Received: {answer}.")
        return {"seconds": seconds}


if __name__ == "__main__":
    turns.serve(_Work(json.loads(sys.argv[1])).run)
