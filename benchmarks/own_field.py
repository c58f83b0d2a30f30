r"""Trains an encoder further on novels, beside the same one from scratch.

  python benchmarks/own_field.py --output_dir=output/own_field
  python benchmarks/own_field.py --output_dir=output/own_field --report

Both are MiniLM's network (6 layers, width 384) with a new masked-LM head; one
begins with MiniLM's encoder, the other with random weights. Each learning rate
is a run of each, of equal steps, batches, order and masks; after each of
--eval_steps the loss on novels that are in no training text is computed. It is
no measurement of time. Finished stages are kept, and a killed run resumes.
The last lines are the table of the losses, by steps.
"""

import json
import os
import pathlib
import subprocess
import sys

from absl import app
from absl import flags

_ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))
_CORPUS = _ROOT.parent / "shared" / "data" / "corpus"

_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "Records, models and scores.", required=True
)
_TEXT = flags.DEFINE_string(
    "text", str(_CORPUS / "books.txt.gz"), "Text to train on."
)
_HELDOUT = flags.DEFINE_string(
    "heldout_text", str(_CORPUS / "books_heldout.txt.gz"), "Text to score."
)
_EVAL_STEPS = flags.DEFINE_list(
    "eval_steps", ["100", "250", "500", "1000"], "Where the loss is computed."
)
_RATES = flags.DEFINE_list("learning_rates", ["1e-4", "5e-4"], "Peaks.")
_BATCH = flags.DEFINE_integer("train_batch_size", 32, "Sequences of a step.")
_MAX_EVAL_STEPS = flags.DEFINE_integer(
    "max_eval_steps", 200, "Batches of 16 held-out sequences."
)
_REPORT = flags.DEFINE_bool("report", False, "Print the finished stages alone.")

_STARTS = {"MiniLM's encoder": "minilm", "from scratch": None}


def _run(script, **values):
    words = [f"--{name}={value}" for name, value in values.items()]
    command = [sys.executable, str(_ROOT / "run" / script), *words]
    subprocess.run(command, check=True)


def _prepare():
    """Converts MiniLM and makes the records; returns their files."""
    from tests.support import minilm

    folder = _OUTPUT_DIR.value
    model = os.path.join(folder, "minilm")
    if not os.path.exists(model):
        _run(
            "convert_checkpoint.py",
            input=minilm.directory(),
            to="bert_tf",
            output=model,
        )
    records = {}
    # Masks differ from pass to pass in training; held-out text is seen once.
    for name, text, passes in (
        ("train", _TEXT.value, 5),
        ("heldout", _HELDOUT.value, 1),
    ):
        records[name] = os.path.join(folder, "records", f"{name}.tfrecord")
        _run(
            "create_pretraining_data.py",
            input_file=text,
            vocab_file=os.path.join(model, "vocab.txt"),
            output_file=records[name],
            dupe_factor=passes,
            next_sentence_pairs=False,
        )
    return model, records


def _score_path(start, rate, step):
    name = f"{_STARTS[start] or 'scratch'}-{rate}"
    return os.path.join(_OUTPUT_DIR.value, name, f"eval-{step}.json")


def _train(model, records, start, rate, step):
    """Trains to a step and stores the score there."""
    path = _score_path(start, rate, step)
    if os.path.exists(path):
        return
    output = os.path.dirname(path)
    last = int(_EVAL_STEPS.value[-1])
    _run(
        "pretrain.py",
        bert_config_file=os.path.join(model, "bert_config.json"),
        **({"init_checkpoint": model} if _STARTS[start] else {}),
        input_file=records["train"],
        eval_input_file=records["heldout"],
        output_dir=output,
        do_train=True,
        do_eval=True,
        use_next_sentence=False,
        train_batch_size=_BATCH.value,
        learning_rate=rate,
        num_train_steps=last,
        num_warmup_steps=max(last // 20, 1),
        stop_at_step=step,
        eval_batch_size=16,
        max_eval_steps=_MAX_EVAL_STEPS.value,
        iterations_per_loop=50,
        save_checkpoints_steps=last,
        keep_checkpoint_max=1,
        mixed_precision="auto",
    )
    with open(
        os.path.join(output, "eval_results.txt"), encoding="utf-8"
    ) as file:
        rows = dict(line.strip().split(" = ") for line in file if "=" in line)
    if int(rows["global_step"]) != step:
        raise SystemExit(f"{output} is at step {rows['global_step']}.")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({name: float(value) for name, value in rows.items()}, file)


def _print_report():
    print("| steps | start | peak learning rate | loss | perplexity | right |")
    print("|---" * 6 + "|")
    for step in map(int, _EVAL_STEPS.value):
        for start in _STARTS:
            for rate in _RATES.value:
                path = _score_path(start, rate, step)
                if not os.path.exists(path):
                    continue
                with open(path, encoding="utf-8") as file:
                    score = json.load(file)
                loss = score["masked_lm_loss"]
                print(
                    f"| {step:,} | {start} | {rate} | {loss:.3f} | "
                    f"{score['masked_lm_perplexity']:.1f} ± "
                    f"{score['masked_lm_perplexity_error']:.1f} | "
                    f"{score['masked_lm_accuracy']:.1%} |"
                )


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    if not _REPORT.value:
        model, records = _prepare()
        for step in map(int, _EVAL_STEPS.value):
            for rate in _RATES.value:
                for start in _STARTS:
                    _train(model, records, start, rate, step)
    _print_report()


if __name__ == "__main__":
    app.run(main)
