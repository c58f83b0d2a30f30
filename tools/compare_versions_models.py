"""Outputs of models in one version of the project, for compare_versions.py.

The program runs with the Python path of that version and uses only public
names, but `make_keras` also reads the layers of the old version's models.

    python compare_versions_models.py make_keras|answer|serve FOLDER PATH...
"""

import json
import pathlib
import socket
import subprocess
import sys
import time
import traceback
import urllib.error
import urllib.request
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  Its operators are in the exports.
from ai_edge_litert import interpreter as interpreters
from tensorflow_text.core.pybinds import tflite_registrar

import bert_tf

Arrays = dict[str, np.ndarray]

_TEXTS = [
    "The card [MASK] has arrived in London on Monday.",
    "Ada Lovelace wrote the first program, in 1843. Who paid for it?",
    "no",
]
_CHOICES = [[f"{text} {n}" for n in range(4)] for text in _TEXTS]
_STRINGS = {"choices": _CHOICES, "context": _TEXTS[::-1]}
_ROWS = {
    "BertForClassification": _TEXTS,
    "BertForTagging": _TEXTS,
    "BertForQuestionAnswering": [*zip(_TEXTS, _TEXTS[::-1], strict=True)],
    "BertForMultipleChoice": [
        {"context": text, "choices": choices}
        for text, choices in zip(_TEXTS, _CHOICES, strict=True)
    ],
}
_LENGTH = 24
_MASK_ID = 103
_EXAMPLES = ("examples", "inputs")


def make_keras(folder: pathlib.Path, paths: list[pathlib.Path]) -> None:
    """Saves .keras files of models, plain and compiled, and of layers."""
    layers = []
    for path in paths:
        model = bert_tf.load_model(str(path))
        layers += [
            keras.saving.serialize_keras_object(layer)
            for layer in model._flatten_layers(include_self=False)
            if "bert_tf>" in keras.saving.get_registered_name(type(layer))
        ]
        model.save(folder / f"{path.parent.name}.keras")
        _train(model)
        model.save(folder / f"{path.parent.name}_compiled.keras")
    (folder / "layers.json").write_text(json.dumps(layers))
    encoder = bert_tf.load_model(
        str(paths[0]), "encoder", dtype="mixed_bfloat16", fuse=True
    )
    encoder.save(folder / "encoder.keras")
    inputs = {
        "input_ids": keras.Input((None,), dtype="int32", name="input_ids")
    }
    states = encoder(inputs)["pooled_output"]
    logits = keras.layers.Dense(2, name="logits")(states)
    keras.Model(inputs, {"logits": logits}).save(folder / "functional.keras")


def _train(model: keras.Model) -> Arrays:
    """Trains for some steps; returns losses and weights."""
    inputs = _inputs(model)
    outputs = model(inputs)
    labels = {
        name: np.zeros(value.shape[:-1], np.int32)
        for name, value in outputs.items()
        if name.endswith("logits")
    }
    if not model.compiled:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = bert_tf.build_optimizer(num_train_steps=8)
        losses = dict.fromkeys(labels, loss)
        model.compile(optimizer, losses, jit_compile=False)
    fitted = model.fit(inputs, labels, epochs=2, shuffle=False, verbose=0)
    arrays = {f"fit/{k}": np.array(v) for k, v in fitted.history.items()}
    return arrays | _flatten("weights", model.get_weights())


def _inputs(model: keras.Model) -> Arrays:
    is_choice = type(model).__name__ == "BertForMultipleChoice"
    shape = (3, 4, _LENGTH) if is_choice else (3, _LENGTH)
    names = ["input_ids"]
    if type(model).__name__.startswith("Bert"):
        names += ["input_mask", "segment_ids"]
    return {name: _numbers(name, shape) for name in names}


def _numbers(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns values for an input by its name, in rows of unequal lengths."""
    places = np.broadcast_to(np.arange(shape[-1]), shape)
    if name == "input_mask":
        ends = shape[-1] - np.arange(np.prod(shape[:-1])) % 3 * 5
        return (places < ends.reshape(*shape[:-1], 1)).astype(np.int32)
    if name == "segment_ids":
        return (places > shape[-1] // 3).astype(np.int32)
    ids = np.random.default_rng(5).integers(200, 1900, shape)
    ids[..., 3] = _MASK_ID
    return ids.astype(np.int32)


def _strings(name: str, names: list[str]) -> Any:
    """Returns strings for an input: texts, or Examples with all `names`."""
    if name not in _EXAMPLES:
        return _STRINGS.get(name, _TEXTS)
    examples = [tf.train.Example() for _ in _TEXTS]
    for row, example in enumerate(examples):
        for key in names:
            texts = np.atleast_1d(_strings(key, names)[row])
            example.features.feature[key].bytes_list.value.extend(
                text.encode() for text in texts
            )
    return [example.SerializeToString() for example in examples]


def _flatten(prefix: str, tree: Any) -> Arrays:
    """Returns nested tensors by path, cast to types that NumPy stores."""
    arrays = {}
    for path, value in keras.tree.flatten_with_path(tree):
        value = np.asarray(value)
        if value.dtype == object:
            value = value.astype(bytes)
        if value.dtype.name == "bfloat16":
            value = value.astype(np.float32)
        arrays["/".join(map(str, (prefix, *path)))] = value
    return arrays


# === Answers ===


def answer(folder: pathlib.Path, paths: list[pathlib.Path]) -> None:
    """Writes outputs and signatures of models of all formats."""
    facts = {}
    for name in ("BertModel", "load_model", "build_optimizer"):
        getattr(bert_tf, name)  # Imports classes and registers them in Keras.
        known = keras.saving.get_custom_objects()
        facts[name] = {key: 1 for key in known if key.startswith("bert_tf>")}
    (folder / "registered.json").write_text(json.dumps(facts))
    failed = False
    for path in paths:
        # Drop the version, so that both versions write equal file names.
        name = "_".join(path.parts[-3:]).replace("old_", "").replace("new_", "")
        try:
            arrays, facts = _answer(path)
        except Exception:  # noqa: BLE001  The other models matter, too.
            traceback.print_exc()
            failed = True
            continue
        np.savez(folder / f"{name}.npz", **arrays)
        (folder / f"{name}.json").write_text(json.dumps(facts))
    sys.exit(1 if failed else 0)


def _answer(path: pathlib.Path) -> tuple[Arrays, Any]:
    if path.suffix == ".tflite":
        return _answer_lite(path)
    if path.suffix == ".json":
        return _answer_layers(path)
    if path.suffix == ".keras":
        model = keras.models.load_model(path)
        arrays = _flatten("call", model(_inputs(model)))
        arrays |= _flatten("predict", model.predict(_inputs(model), verbose=0))
        if model.compiled or path.stem == "functional":
            arrays |= _train(model)
        return arrays, {}
    if (path / "saved_model.pb").exists():
        return _answer_saved(path)
    return _answer_directory(str(path))


def _answer_directory(path: str) -> tuple[Arrays, Any]:
    """Loads a model as it is, in bfloat16, and with a new head."""
    model = bert_tf.load_model(path)
    arrays = _flatten("call", model(_inputs(model)))
    low = bert_tf.load_model(path, dtype="mixed_bfloat16")
    arrays |= _flatten("bfloat16", low(_inputs(low)))
    keras.utils.set_random_seed(3)
    new = bert_tf.load_model(
        path, "classification", labels=["a", "b"], new_parts=["head"]
    )
    rows = _ROWS.get(type(model).__name__)
    return arrays | _flatten("new", new.get_weights()), {
        "config": model.get_config(),
        "rows": rows and model.predict(rows, verbose=0),
        "tokens": bert_tf.load_tokenizer(path).tokenize(_TEXTS).to_list(),
    }


def _answer_layers(path: pathlib.Path) -> tuple[Arrays, Any]:
    """Builds layers from stored configurations; runs some with dropout."""
    arrays, classes = {}, []
    seeds, ids = np.arange(3, dtype=np.int32), _numbers("input_ids", (3, 6))
    states = np.random.default_rng(2).normal(size=(3, 6, 128)).astype("f4")
    for number, config in enumerate(json.loads(path.read_text())):
        keras.utils.set_random_seed(number)
        layer = keras.saving.deserialize_keras_object(config)
        name = keras.saving.get_registered_name(type(layer))
        classes.append([name, layer.name, layer.dtype_policy.name])
        inputs = None
        if name == "bert_tf>Embeddings":
            inputs = ids, ids % 2
        elif name in ("bert_tf>Encoder", "bert_tf>EncoderLayer"):
            inputs = states, np.zeros((3, 1, 1, 6), "f4")
        if inputs:
            outputs = layer(*inputs, dropout_seeds=seeds)
            arrays |= _flatten(f"{number}/{layer.name}", outputs)
    return arrays, classes


def _answer_saved(path: pathlib.Path) -> tuple[Arrays, Any]:
    loaded = tf.saved_model.load(str(path))
    first = loaded.signatures["serving_default"].structured_input_signature[1]
    arrays, facts = {}, {}
    for name, function in loaded.signatures.items():
        inputs = function.structured_input_signature[1]
        facts[name] = [
            {key: [x.dtype.name, str(x.shape)] for key, x in specs.items()}
            for specs in (inputs, function.structured_outputs)
        ]
        values = {
            key: _strings(key, [*first])
            if spec.dtype == tf.string
            else _numbers(key, (3, 4, _LENGTH)[-spec.shape.rank :])
            for key, spec in inputs.items()
        }
        values = {key: tf.constant(value) for key, value in values.items()}
        arrays |= _flatten(name, function(**values))
    return arrays, facts


def _answer_lite(path: pathlib.Path) -> tuple[Arrays, Any]:
    runner = interpreters.InterpreterWithCustomOps(
        model_path=str(path),
        custom_op_registerers=tflite_registrar.SELECT_TFTEXT_OPS,
    ).get_signature_runner()
    inputs, outputs = runner.get_input_details(), runner.get_output_details()
    facts = [
        {
            name: [x["dtype"].__name__, x["shape_signature"].tolist()]
            for name, x in details.items()
        }
        for details in (inputs, outputs)
    ]
    values = {
        name: _numbers(name, (3, 4, _LENGTH)[-len(x["shape"]) :])
        if x["dtype"] == np.int32
        else np.char.encode(_strings(name, [])).astype(object)
        for name, x in inputs.items()
    }
    return _flatten("outputs", runner(**values)), facts


# === Server ===


def serve(folder: pathlib.Path, paths: list[pathlib.Path]) -> None:
    """Writes the answers of run/serve.py to REST requests for exports."""
    names = {path.parent.name: path for path in paths}
    config = folder / "models.config"
    models = (
        f'config {{ name: "{name}" base_path: "{path}" '
        'model_platform: "tensorflow" }\n'
        for name, path in names.items()
    )
    config.write_text(f"model_config_list {{ {''.join(models)} }}")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    flags = ["--port=0", f"--rest_api_port={port}"]
    server = subprocess.Popen(
        [
            sys.executable,
            "run/serve.py",
            *flags,
            f"--model_config_file={config}",
        ]
    )
    url = f"http://127.0.0.1:{port}"
    try:
        while server.poll() is None and not _get(f"{url}/readyz"):
            time.sleep(0.2)
        answers = {name: _ask(f"{url}/v1/models/{name}") for name in names}
    finally:
        server.terminate()
        server.wait()
    (folder / "answers.json").write_text(json.dumps(answers))


def _get(url: str, body: dict | None = None) -> str | None:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(url, data) as reply:
            return reply.read().decode() or "ok"
    except urllib.error.HTTPError as error:
        return f'"{error.code}"' if body else None
    except OSError:
        return None


def _ask(url: str) -> dict[str, Any]:
    """Returns the metadata and the answers of signatures that take strings."""
    answers = {"metadata": json.loads(_get(f"{url}/metadata"))}
    signatures = answers["metadata"]["metadata"]["signature_def"]
    for name, signature in signatures["signature_def"].items():
        names = [*signature["inputs"]]
        if {"input_ids", *_EXAMPLES} & {*names}:
            continue
        columns = [_strings(key, names) for key in names]
        rows = [
            dict(zip(names, row, strict=True))
            for row in zip(*columns, strict=True)
        ]
        body = {"signature_name": name, "instances": rows}
        answers[name] = json.loads(_get(f"{url}:predict", body))
    return answers


def main(mode: str, folder: str, *paths: str) -> None:
    keras.utils.set_random_seed(7)
    run = {"make_keras": make_keras, "answer": answer, "serve": serve}[mode]
    run(pathlib.Path(folder), [pathlib.Path(path) for path in paths])


if __name__ == "__main__":
    main(*sys.argv[1:])
