"""What serving_latency.py times of this project, and of KerasHub.

    python serving_latency_tf.py SETTINGS

Both are SavedModels, loaded and called as a server does.
"""

import json
import os
import sys
import time

import turns

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf  # noqa: E402  The variable comes first.
import tensorflow_text  # noqa: E402, F401  Its operators.

_TEXT_NAMES = ("text", "text_pair")


def _write_keras_hub(settings):
    """Writes KerasHub's classifier; returns precision to path."""
    import keras
    import keras_hub

    shape = settings["shape"]
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(
        keras_hub.models.BertTokenizer(
            os.path.join(settings["tokenizer"], "vocab.txt"), lowercase=True
        ),
        sequence_length=settings["max_seq_length"],
    )
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

        def serve(*texts, model=model):
            # Its __call__ takes a pair for a text and its label.
            rows = preprocessor.call(texts if len(texts) > 1 else texts[0])
            logits = model(rows, training=False)
            return {"probabilities": keras.ops.softmax(logits)}

        names = _TEXT_NAMES[: settings["num_texts"]]
        module = tf.Module()
        module.weights = [x.value for x in model.variables]
        module.preprocessor = preprocessor
        module.serve = tf.function(
            serve,
            input_signature=[
                tf.TensorSpec([None], tf.string, x) for x in names
            ],
        )
        paths[precision] = os.path.join(
            settings["folder"], f"keras_hub_{precision}"
        )
        tf.saved_model.save(
            module, paths[precision], {"serving_default": module.serve}
        )
    return paths


class _Work:
    def __init__(self, settings):
        is_ours = settings["framework"] == "bert_tf"
        paths = settings["exports"] if is_ours else _write_keras_hub(settings)
        self._loaded = {k: tf.saved_model.load(x) for k, x in paths.items()}

    def run(self, precision, batches):
        """Returns the seconds of each batch."""
        seconds = []
        for rows in batches:
            serve = self._loaded[precision].signatures["serving_default"]
            start = time.perf_counter()
            columns = zip(_TEXT_NAMES, zip(*rows, strict=True), strict=False)
            answer = serve(**{k: tf.constant(x) for k, x in columns})
            probabilities = answer["probabilities"].numpy()
            seconds.append(time.perf_counter() - start)
            if probabilities.shape != (len(rows), 2):
                raise ValueError(f"Of {len(rows)}: {probabilities.shape}.")
        return {"seconds": seconds}


if __name__ == "__main__":
    _settings = json.loads(sys.argv[1])
    tf.config.threading.set_intra_op_parallelism_threads(_settings["threads"])
    turns.serve(_Work(_settings).run)
