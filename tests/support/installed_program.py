"""Uses an installed bert_tf as a new user would, in an empty folder.

Each step is a `bert-tf` command of the Python that runs this program, which
imports nothing but the standard library: records, pretraining by a recipe,
fine-tuning, prediction, export, and the server. A command whose extra is not
installed must name it.

  python installed_program.py [FOLDER_WITH_THE_EXTRA_SERVE]
"""

import contextlib
import csv
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import time
import urllib.request

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS = [f"word{number}" for number in range(30522 - len(_SPECIAL))]
_PORT = 8765


def _has(package):
    return importlib.util.find_spec(package) is not None


def _log(*words):
    sys.stdout.write(f"> {' '.join(words)}\n")
    sys.stdout.flush()


def _command(*words):
    return [str(pathlib.Path(sys.executable).with_name("bert-tf")), *words]


def _run(line):
    _log("bert-tf", line)
    subprocess.run(_command(*line.split()), check=True, timeout=400)


def _refuse(expected, line):
    """Checks that a command fails with a message that has `expected`."""
    words = _command(*line.split())
    result = subprocess.run(words, check=False, capture_output=True, text=True)
    if result.returncode != 1 or expected not in result.stderr:
        raise SystemExit(f"{line}: {expected!r} is not in: {result.stderr}")
    if "Traceback" in result.stderr:
        raise SystemExit(result.stderr)


def _write_text():
    rng = random.Random(5)
    pathlib.Path("data").mkdir()
    vocabulary = "\n".join([*_SPECIAL, *_WORDS]) + "\n"
    pathlib.Path("data/vocab.txt").write_text(vocabulary)
    documents = [
        "\n".join(
            " ".join(rng.choices(_WORDS, k=rng.randint(9, 40)))
            for _ in range(30)
        )
        for _ in range(3)
    ]
    pathlib.Path("corpus.txt").write_text("\n\n".join(documents))
    with open("rows.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for number in range(16):
            rows.writerow([" ".join(_WORDS[number:][:5]), "ab"[number % 2]])


def _train_and_predict():
    _run(
        "create-pretraining-data --input_file=corpus.txt "
        "--output_file=data/pretraining/text.tfrecord "
        "--vocab_file=data/vocab.txt --max_seq_length=128 "
        "--max_predictions_per_seq=20 --num_shards=2 --dupe_factor=1 "
        "--nosplit_sentences"
    )
    _run(
        "pretrain --flagfile=tiny.flags --num_train_steps=3 --stop_at_step=3 "
        "--num_warmup_steps=1 --train_batch_size=4 --max_eval_steps=1"
    )
    _run(
        "finetune-classifier --task_name=custom --train_file=rows.csv "
        "--dev_file=rows.csv --text_column=text --label_column=label "
        "--pretrained_model_dir=output/tiny/model --output_dir=output/rows "
        "--max_seq_length=16 --train_batch_size=8 --num_train_epochs=1 "
        "--do_train --do_eval"
    )
    _run(
        "predict --model_dir=output/rows/model --input_file=rows.csv "
        "--output_file=predictions.jsonl"
    )
    lines = pathlib.Path("predictions.jsonl").read_text().splitlines()
    labels = [json.loads(line)["label"] for line in lines]
    if len(labels) != 16 or not set(labels) <= {"a", "b"}:
        raise SystemExit(f"Unexpected predictions: {labels}")
    return labels[0]


def _serve(expected, folders):
    """Asks a server for the label of the first row."""
    _log("bert-tf serve")
    url = f"http://localhost:{_PORT}/v1/models/rows"
    body = {"instances": [{"text": " ".join(_WORDS[:5])}]}
    server = subprocess.Popen(
        _command(
            "serve",
            "--model_base_path=served/rows",
            "--port=0",
            f"--rest_api_port={_PORT}",
        ),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
    )
    try:
        for _ in range(120):
            if server.poll() is not None:
                raise SystemExit(f"The server exited with {server.poll()}.")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(url)
                break
            time.sleep(1)
        request = urllib.request.Request(
            f"{url}:predict", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request) as response:
            (answer,) = json.load(response)["predictions"]
        if answer["label"] != expected:
            raise SystemExit(f"{answer} differs from {expected}.")
    finally:
        server.terminate()
        server.wait()


def main():
    folders = sys.argv[1:]
    _write_text()
    label = _train_and_predict()
    model = "--model_dir=output/rows/model"
    _run(f"export-savedmodel {model} --output_dir=served/rows")
    has_server = _has("httptools") and _has("orjson")
    if not has_server:
        _refuse('"bert_tf[serve]"', "serve --model_base_path=served/rows")
    if has_server or folders:
        _serve(label, folders)
    tflite = f"export-tflite {model} --output_file=rows.tflite"
    if _has("ai_edge_litert"):
        _run(tflite)
    else:
        _refuse('"bert_tf[tflite]"', tflite)


if __name__ == "__main__":
    main()
