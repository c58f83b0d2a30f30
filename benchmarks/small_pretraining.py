r"""Pretrains the small model of cpu.flags on novels in several ways.

  python benchmarks/small_pretraining.py --rows=choices
  python benchmarks/small_pretraining.py --rows=choices --report

`choices`: the gain of each change since 2018, at equal processor time.
`curves`: a run whose loss falls below the entropy of the token frequencies, and
three runs that go wrong; --picture draws them.
`tasks`: the model of a whole run of cpu.flags (--model_dir), fine-tuned, and
the same network with random weights.

One run is made at a time, and killed runs resume. Finished results are in
--results_dir, a part of the repository, and are not run again. Time is
processor time, so that other work on the machine hardly changes it.
"""

import dataclasses
import functools
import os
import statistics

import finetune_ours
import finetune_tasks
import runs
from absl import flags

_ROWS = flags.DEFINE_enum(
    "rows", "choices", ["choices", "curves", "tasks"], "Which table."
)
_FOLDERS = runs.Folders("small_pretraining")
_path = _FOLDERS.output
_MODEL_DIR = flags.DEFINE_string(
    "model_dir",
    "output/cpu/model",
    "tasks: the model of a whole run of cpu.flags.",
)
_PROCESSOR_SECONDS = flags.DEFINE_integer(
    "processor_seconds", 420, "choices: processor seconds of each run."
)
_PICTURE = flags.DEFINE_string("picture", None, "curves: PNG to draw.")

_TEXT = "books.txt.gz"
_SEEDS = (1, 2)
_TASK_SEEDS = (1, 2, 3)
_LENGTH, _BATCH = 64, 128
# Records have pairs with 15% masked tokens, like the original's.
_RECORDS = {
    "masked_lm_prob": 0.15,
    "max_predictions_per_seq": 10,
    "max_seq_length": _LENGTH,
    "dupe_factor": 3,
}
_MASKED_30 = {"masked_lm_prob": 0.3, "max_predictions_per_seq": 20}
_ALONE = {"next_sentence_pairs": False}
# cpu.flags without the flags that the rows add.
_TRAINING = {
    "bert_config_file": "configs/cpu/bert_config.json",
    "max_seq_length": _LENGTH,
    "train_batch_size": _BATCH,
    "optimizer": "adamw",
    "learning_rate": 2e-3,
    "num_warmup_steps": 300,
    "mixed_precision": "auto",
    "dynamic_masking": True,
    "eval_batch_size": 128,
    "max_eval_steps": 1000,
    "iterations_per_loop": 50,
    "save_checkpoints_secs": 120,
}
_FALLING = {"masked_lm_prob": 0.3, "final_masked_lm_prob": 0.15}


@dataclasses.dataclass(frozen=True)
class Run:
    """Flags that differ from the baseline's flags.

    Attributes:
      records: Flags of run/create_pretraining_data.py.
      training: Flags of run/pretrain.py.
      megabytes: Size of the training text in MB; None takes all novels.
    """

    records: dict = dataclasses.field(default_factory=dict)
    training: dict = dataclasses.field(default_factory=dict)
    megabytes: float | None = None


CHOICES = {
    "baseline": Run(),
    "30% masked, falling to 15%": Run(_MASKED_30, _FALLING),
    "no next sentence": Run(_ALONE, {"use_next_sentence": False}),
    "whole words": Run({"do_whole_word_mask": True}),
    "--schedule=wsd": Run({}, {"schedule": "wsd"}),
    "--adam_beta2=0.98": Run({}, {"adam_beta2": 0.98}),
    "all five": Run(
        _MASKED_30 | _ALONE | {"do_whole_word_mask": True},
        _FALLING
        | {"use_next_sentence": False, "schedule": "wsd", "adam_beta2": 0.98},
    ),
}
_SHORT = {
    "use_next_sentence": False,
    "masked_lm_prob": 0.3,
    "num_train_steps": 1500,
}
# The last run is not drawn, because its curve is as healthy as the first.
CURVES = {
    "healthy": Run(_MASKED_30 | _ALONE, _SHORT),
    "plateau": Run(_MASKED_30 | _ALONE, _SHORT | {"learning_rate": 1e-4}),
    "rate too high": Run(_MASKED_30 | _ALONE, _SHORT | {"learning_rate": 0.02}),
    "duplicated data": Run(_MASKED_30 | _ALONE, _SHORT, 0.3),
    "the original's optimizer": Run(
        _MASKED_30 | _ALONE, _SHORT | {"optimizer": "bert_adam"}
    ),
}
_TASKS = {
    "wikigold": {
        "max_seq_length": 64,
        "train_batch_size": 16,
        "num_train_epochs": 5,
    },
    "snli": {"max_seq_length": 64, "num_train_epochs": 3},
    "banking77": {"max_seq_length": 64, "num_train_epochs": 5},
}


def _name(*words):
    return "-".join(
        "".join(x if x.isalnum() else "_" for x in str(word)) for word in words
    )


def _result_path(*words):
    return _FOLDERS.result(_name(*words))


def _text(megabytes):
    """Returns the novels, or their first part."""
    if megabytes is None:
        return _FOLDERS.data("corpus", _TEXT)
    path = _path(f"novels_{megabytes}.txt")
    if not os.path.exists(path):
        import gzip

        with gzip.open(_FOLDERS.data("corpus", _TEXT)) as file:
            text = file.read(int(megabytes * 1e6))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(text[: text.rindex(b"\n") + 1])
    return path


def _vocabulary():
    path = _path("vocab.txt")
    if not os.path.exists(path):
        runs.run_script(
            "run/learn_vocabulary.py",
            flagfile="cpu_vocabulary.flags",
            input_file=_text(None),
            output_file=path,
        )
    return path


def _records(text, values):
    """Makes records if they are missing; returns their file."""
    name = _name("records", os.path.basename(text), *values.values())
    path = _path(name, "records.tfrecord")
    if not os.path.exists(f"{path}.report.json"):
        runs.run_script(
            "run/create_pretraining_data.py",
            input_file=text,
            vocab_file=_vocabulary(),
            output_file=path,
            **values,
        )
    return path


def _held_out():
    """Makes the records for all scores: single texts with 15% masked."""
    values = _RECORDS | {"dupe_factor": 1} | _ALONE
    return _records(_FOLDERS.data("corpus", "books_heldout.txt.gz"), values)


def _pretrain(output_dir, run, seed, **values):
    return runs.run_script(
        "run/pretrain.py",
        **_TRAINING
        | run.training
        | {
            "input_file": _records(
                _text(run.megabytes), _RECORDS | run.records
            ),
            "vocab_file": _vocabulary(),
            "output_dir": output_dir,
            "do_train": True,
            "seed": seed,
        }
        | values,
    )


def _step_seconds(name, run):
    """Returns the processor seconds of a step, from two short runs."""
    path = _path("step_seconds", f"{_name(name)}.json")
    if not os.path.exists(path):
        seconds = [
            _pretrain(
                _path("step_seconds", _name(name, steps)),
                run,
                0,
                num_train_steps=steps,
                num_warmup_steps=1,
            )
            for steps in (20, 120)
        ]
        runs.write_json(path, (seconds[1] - seconds[0]) / 100)
    return runs.read_json(path)


def _choose(name, run, seed):
    """Runs a row of choices; writes its result."""
    step_seconds = _step_seconds(name, run)
    steps = int(_PROCESSOR_SECONDS.value / step_seconds)
    output_dir = _path(_name("choices", name, seed))
    _pretrain(
        output_dir,
        run,
        seed,
        num_train_steps=steps,
        do_eval=True,
        eval_input_file=_held_out(),
    )
    model = {"pretrained_model_dir": os.path.join(output_dir, "model")}
    result = {
        "row": name,
        "seed": seed,
        "steps": steps,
        "tokens": steps * _LENGTH * _BATCH,
        "processor_seconds_of_a_step": step_seconds,
        "flags": {"records": run.records, "training": run.training},
        "held_out": runs.read_scores(output_dir),
        "wikigold": _fine_tune("wikigold", model, seed),
    }
    runs.write_json(_result_path("choices", name, seed), result)


def _draw_curve(name, run):
    """Runs a row of curves; writes its result."""
    output_dir = _path(_name("curves", name))
    _pretrain(output_dir, run, 1, do_eval=True, eval_input_file=_held_out())
    result = {
        "row": name,
        "flags": {"records": run.records, "training": run.training},
        "megabytes": run.megabytes,
        "held_out": runs.read_scores(output_dir),
        "curve": runs.read_json_lines(
            os.path.join(output_dir, "train_metrics.jsonl")
        ),
    }
    runs.write_json(_result_path("curves", name), result)


def _fine_tune(task, model, seed):
    """Returns the score of a task in percent.

    Args:
      task: A key of _TASKS.
      model: The flags that choose the initial weights.
      seed: The seed of the head and of the order of the rows.
    """
    settings = dataclasses.replace(
        finetune_tasks.TASKS[task], learning_rate=5e-4, **_TASKS[task]
    )
    data = settings.read(_FOLDERS.data())
    name = _path("tasks", _name(task, *model.values(), seed)[-200:])
    os.makedirs(os.path.dirname(name), exist_ok=True)
    answer = finetune_ours.run(
        settings.to_json()
        | {
            "task": task,
            "model": model,
            "labels": data.labels,
            "train": data.train,
            "test": data.test,
            "seed": seed,
            "threads": 2,
        },
        name,
    )
    (score,) = finetune_tasks.score(task, data, answer["predictions"]).values()
    return score


def _compare_tasks(task, start, seed):
    model = os.path.abspath(_MODEL_DIR.value)
    models = {
        "recipe": {"pretrained_model_dir": model},
        "scratch": {
            "bert_config_file": os.path.join(model, "bert_config.json"),
            "vocab_file": os.path.join(model, "vocab.txt"),
        },
    }
    score = _fine_tune(task, models[start], seed)
    runs.write_json(
        _result_path("tasks", task, start, seed),
        {"task": task, "start": start, "seed": seed, "score": score},
    )


def _jobs():
    """Yields the words of each result's name, and the function to make it."""
    if _ROWS.value == "choices":
        for seed in _SEEDS:
            for name, run in CHOICES.items():
                words = ("choices", name, seed)
                yield words, functools.partial(_choose, name, run, seed)
    elif _ROWS.value == "curves":
        for name, run in CURVES.items():
            yield ("curves", name), functools.partial(_draw_curve, name, run)
    else:
        for seed in _TASK_SEEDS:
            for task in _TASKS:
                for start in ("recipe", "scratch"):
                    words = (task, start, seed)
                    make = functools.partial(_compare_tasks, *words)
                    yield ("tasks", *words), make


def _mean(values):
    mean = statistics.mean(values)
    if len(values) == 1:
        return f"{mean:.2f}"
    return f"{mean:.2f} ± {statistics.stdev(values):.2f}"


def _print_report():
    """Prints the table of finished results."""
    found = [
        runs.read_json(path)
        for words, _ in _jobs()
        if os.path.exists(path := _result_path(*words))
    ]
    if _ROWS.value == "tasks":
        print("| task | start | score |\n|---|---|---|")
        for task in _TASKS:
            for start in ("recipe", "scratch"):
                scores = [
                    x["score"]
                    for x in found
                    if (x["task"], x["start"]) == (task, start)
                ]
                if scores:
                    print(f"| {task} | {start} | {_mean(scores)} |")
        return
    columns = ["run", "steps", "perplexity", "masked tokens right"]
    columns += ["wikigold"] if _ROWS.value == "choices" else []
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for name in dict.fromkeys(x["row"] for x in found):
        rows = [x for x in found if x["row"] == name]
        held_out = [x["held_out"] for x in rows]
        cells = [
            name,
            f"{held_out[0]['global_step']:,.0f}",
            _mean([x["masked_lm_perplexity"] for x in held_out]),
            _mean([100 * x["masked_lm_accuracy"] for x in held_out]),
        ]
        if "wikigold" in rows[0]:
            cells.append(_mean([x["wikigold"] for x in rows]))
        print(f"| {' | '.join(cells)} |")


def _draw(path):
    """Draws a panel for each finished curve."""
    from bert_tf import reports

    figure = reports.new_figure("", 4.6, 7.0)
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for axes, name in zip(panels.flat, CURVES, strict=False):
        result = _result_path("curves", name)
        if not os.path.exists(result):
            continue
        found = runs.read_json(result)
        curve = [x for x in found["curve"] if "masked_lm_loss" in x]
        last = found["held_out"]
        scores = {
            x["step"]: x["held_out_masked_lm_loss"]
            for x in found["curve"]
            if "held_out_masked_lm_loss" in x
        } | {last["global_step"]: last["masked_lm_loss"]}
        steps, losses = zip(
            *((x["step"], x["masked_lm_loss"]) for x in curve), strict=True
        )
        axes.plot(steps, losses, color=reports.BLUE, label="training")
        axes.plot(
            [*scores],
            [*scores.values()],
            "s",
            color=reports.ORANGE,
            label="held-out records",
        )
        axes.axhline(
            curve[0]["masked_lm_frequency_loss"],
            color=reports.GRAY,
            linestyle=":",
            label="frequency of tokens alone",
        )
        axes.set(xlabel="step", ylabel="masked-LM loss", ylim=(2, 8))
        reports.finish(axes, title=name)
        axes.label_outer()
    reports.add_legend(figure, 3)
    reports.write(path, figure)


def main():
    if not _FOLDERS.only_reports:
        for words, make in _jobs():
            if not os.path.exists(_result_path(*words)):
                make()
    _print_report()
    if _PICTURE.value:
        _draw(_PICTURE.value)


if __name__ == "__main__":
    runs.main(main)
