"""The programs of this project and KerasHub that serving_latency.py times.

    python serving_latency_tf.py SETTINGS

The engines of run/serve.py load and call both.
"""

import functools
import json
import os
import sys

import turns

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402  Imports must read the variable.
import tensorflow as tf  # noqa: E402
import tensorflow_text  # noqa: E402, F401  Registers its operators.

_TEXT_NAMES = ("text", "text_pair")


def _write_keras_hub(settings):
    """Writes KerasHub's classifier; returns precision -> path."""
    import keras_hub

    shape = settings["shape"]
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(
        keras_hub.models.BertTokenizer(
            os.path.join(settings["tokenizer"], "vocab.txt"), lowercase=True
        ),
        sequence_length=settings["max_seq_length"],
    )
    # The graph uses `call`, which does not build the layer as `__call__` does.
    preprocessor.build(None)
    paths = {}
    for precision in ("float32", "bfloat16"):
        backbone = keras_hub.models.BertBackbone(
            vocabulary_size=shape["vocab_size"],
            num_layers=shape.get("num_hidden_layers", 12),
            num_heads=shape.get("num_attention_heads", 12),
            hidden_dim=shape.get("hidden_size", 768),
            intermediate_dim=shape.get("intermediate_size", 3072),
            dtype=precision,
        )
        model = keras_hub.models.BertTextClassifier(
            backbone, 2, preprocessor=None, dtype=precision
        )

        module = tf.Module()
        module.weights = [x.value for x in model.variables]
        module.preprocessor = preprocessor
        specs = [
            tf.TensorSpec([None], tf.string, x)
            for x in _TEXT_NAMES[: settings["num_texts"]]
        ]
        serve = tf.function(
            functools.partial(_classify, model, preprocessor), autograph=False
        )
        paths[precision] = os.path.join(
            settings["folder"], f"keras_hub_{precision}"
        )
        tf.saved_model.save(
            module,
            paths[precision],
            {"serving_default": serve.get_concrete_function(*specs)},
        )
    return paths


def _classify(model, preprocessor, *texts):
    """Returns KerasHub's probabilities for raw texts."""
    import keras

    # __call__ would take a pair of texts for a text and its label.
    rows = preprocessor.call(texts if len(texts) > 1 else texts[0])
    logits = model(rows, training=False)
    return {"probabilities": keras.ops.softmax(logits)}


def _served(engine, path):
    """Returns a function from columns of texts to run/serve.py's outputs."""
    servable = engine.load("bert", 1, path)
    signature = servable.signatures["serving_default"]

    def answer(columns):
        inputs = {
            k: np.array([text.encode() for text in x], object)
            for k, x in columns.items()
        }
        outputs = servable.run(signature, inputs, tuple(signature.outputs))
        return outputs["probabilities"]

    return answer


class _Work:
    def __init__(self, settings):
        from bert_tf.serving.litert import LitertEngine
        from bert_tf.serving.saved_model import SavedModelEngine

        is_ours = settings["framework"] == "bert_tf"
        paths = settings["exports"] if is_ours else _write_keras_hub(settings)
        threads = settings["threads"]
        self._answers = {
            precision: _served(
                LitertEngine(threads)
                if precision.startswith("litert")
                else SavedModelEngine(threads),
                path,
            )
            for precision, path in paths.items()
        }

    def run(self, precision, batches):
        """Returns the seconds of each batch."""

        def call(rows):
            texts = zip(*rows, strict=True)
            columns = dict(zip(_TEXT_NAMES, texts, strict=False))
            return self._answers[precision](columns)

        return turns.time_calls(call, batches)


if __name__ == "__main__":
    _settings = json.loads(sys.argv[1])
    tf.config.threading.set_intra_op_parallelism_threads(_settings["threads"])
    turns.serve(_Work(_settings).run)
