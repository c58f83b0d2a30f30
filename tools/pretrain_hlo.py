r"""Pretrains on a GPU without TensorFlow, with the flags of run/pretrain.py.

Three commands, of which only the second runs on the GPU, with jax:

  python -m tools.pretrain_hlo --folder=hlo/bert FLAGS
  python -m tools.run_pretrain_hlo hlo/bert
  python -m tools.pretrain_hlo --weights='hlo/bert-*.npz' FLAGS

The first writes the program of a step (tools/lower_step.py), the initial values
of all variables and the plan of the records; --records_flags has the flags of
run/create_pretraining_data.py. The last command converts the weights that the
GPU saved to checkpoints in --output_dir, without Adam's moments. After that,
run/pretrain.py with the same FLAGS evaluates the last one and writes the model.
"""

import dataclasses
import glob
import os
import pickle
import shlex

import numpy as np
from absl import app
from absl import flags

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.commands.pretrain import PretrainConfig
from bert_tf.flags import cli

_FOLDER = flags.DEFINE_string("folder", None, "Folder of the run to write.")
_WEIGHTS = flags.DEFINE_string("weights", None, "Files of weights to read.")
_STORE = flags.DEFINE_string(
    "store", "hlo", "Folder of the tokens, made if they are missing."
)
_RECORDS_FLAGS = flags.DEFINE_string(
    "records_flags", "", "The flags of run/create_pretraining_data.py."
)
_read_config = cli.define_flags(PretrainConfig)


def _plan_records(command_line):
    """Returns the plan of the records, after tokenizing the text."""
    from bert_tf.data.generators import streaming as streaming_generator
    from bert_tf.data.token_store import TokenStore
    from bert_tf.io import worker_processes
    from bert_tf.text.tokenizer import BertTokenizer
    from bert_tf.text.vocabulary import Vocabulary

    values = flags.FlagValues()
    read = cli.define_flags(CreatePretrainingDataConfig, values)
    values(["create", *shlex.split(command_line)])
    config = read()
    tokenizer = BertTokenizer(Vocabulary.from_file(config.vocab_file))
    folder = os.path.join(_STORE.value, "tokens")
    with worker_processes.pool(1) as pool:
        streaming_generator.tokenize_corpus(
            config, [config.input_file], tokenizer, folder, pool, 1
        )
    store = TokenStore.open(folder, len(tokenizer.vocabulary))
    return streaming_generator.plan_parts(
        config, tokenizer, _STORE.value, store, [config.output_file]
    )


def _write_run(trainer, config):
    """Writes the program, its first arguments and the plan of the records."""
    from bert_tf.pretraining import data as pretraining_input
    from tools import lower_step

    step = trainer.training_step
    iterator = pretraining_input.read_from(
        trainer._input,
        0,
        step.plan,
        trainer.devices,
        trainer._data.bert_config.vocab_size,
        False,
    )
    features = sorted(next(iterator))
    program, values, variables, captured = lower_step.lower(step, iterator)
    names = {id(v._value.handle): k for k, v in trainer.variables.items()}
    os.makedirs(_FOLDER.value, exist_ok=True)
    with open(os.path.join(_FOLDER.value, "step.pb"), "wb") as file:
        file.write(program)
    run = {
        "features": features,
        "arguments": values,
        "variables": variables,
        "names": [names.get(id(x)) for x in captured],
        "steps": config.num_train_steps,
        "save_every": config.save_checkpoints_steps,
        "batch_size": config.train_batch_size,
        "loss": 1 + sorted(step._metric_names).index("loss"),
        "plan": _plan_records(_RECORDS_FLAGS.value),
    }
    with open(os.path.join(_FOLDER.value, "run.pickle"), "wb") as file:
        pickle.dump(run, file)
    print(f"{_FOLDER.value}: {len(program) / 1e6:.1f} MB, {features}")


def _write_checkpoints(trainer, paths):
    """Writes the weights of each step as a checkpoint."""
    for path in paths:
        with np.load(path) as saved:
            for name, variable in trainer.variables.items():
                variable.assign(saved[name.replace("/", "|")])
            step = int(saved["step"])
        trainer.training_step.optimizer.iterations.assign(step)
        trainer.checkpoints.save(step)
        trainer.checkpoints.wait()
        print(f"{trainer.output_dir}: step {step}")


def main(argv):
    del argv
    from bert_tf.distribute import devices as device_setup
    from bert_tf.pretraining import run as pretraining
    from bert_tf.training import losses
    from bert_tf.training import preemption as preemptions

    config = _read_config()
    paths = sorted(
        glob.glob(_WEIGHTS.value or ""),
        key=lambda x: int(x.split("-")[-1].split(".")[0]),
    )
    with preemptions.prepare(config) as (devices, requests):
        if not _WEIGHTS.value:
            precision = device_setup.resolve_precision(
                config.mixed_precision, "GPU"
            )
            devices = dataclasses.replace(
                devices, kind="GPU", precision=precision, deterministic=False
            )
            losses.overwrites_logits = lambda: False
        trainer = pretraining._PretrainingTrainer(config, devices, requests)
        trainer.restore_or_initialize()
        if _WEIGHTS.value:
            _write_checkpoints(trainer, paths)
        else:
            _write_run(trainer, config)


if __name__ == "__main__":
    app.run(main)
