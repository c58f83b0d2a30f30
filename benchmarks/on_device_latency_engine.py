"""An engine that on_device_latency.py times.

    python on_device_latency_engine.py SETTINGS

bert_tf's files are run by LiteRT, without TensorFlow. The other engines have
their own environment, which lacks this project.
"""

import json
import sys

import numpy as np
import turns


class _LiteRt:
    def __init__(self, settings):
        from bert_tf.inference.lite_model import LiteModel

        self._models = {}
        for quantization, path in settings["files"].items():
            with open(path, "rb") as file:
                self._models[quantization] = LiteModel(
                    file.read(), settings["threads"]
                )

    def run(self, precision, inputs):
        return self._models[precision].run(inputs)["probabilities"]


def main(settings):
    if settings["framework"] == "bert_tf":
        engine, dtype = _LiteRt(settings), np.int32
        names = ("input_ids", "input_mask", "segment_ids")
    else:
        import serving_latency_peer

        engine = serving_latency_peer.ENGINES[settings["framework"]](settings)
        names, dtype = serving_latency_peer.INPUTS, np.int64
    shape = settings["static_shape"]
    ids = np.resize(np.arange(1, 1000), shape)
    values = (ids, np.ones(shape), np.zeros(shape))
    inputs = {k: x.astype(dtype) for k, x in zip(names, values, strict=True)}

    def run(precision, calls):
        """Returns the seconds of each call."""
        return turns.time_calls(
            lambda rows: engine.run(precision, *rows), [[inputs]] * calls
        )

    turns.serve(run)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
