r"""Times a pretraining step against KerasHub's BertMaskedLM, pair by pair.

  python benchmarks/pretraining_step.py --precision=bfloat16

Both train a BERT of base size on batches of 16 x 128 random pieces with 20
predictions each, dropout on, one process each; they take turns, so that both
see the machine in the same state. Ours also has the next-sentence head, the
original's optimizer and the gradient clipping of a real run. The last line is
the median ratio of the rates, ours / KerasHub's.
"""

import multiprocessing
import os
import statistics
import time

import pretraining_batches
from absl import app
from absl import flags

_PRECISION = flags.DEFINE_enum(
    "precision", "bfloat16", ["float32", "bfloat16"], "Precision of both."
)
_PAIRS = flags.DEFINE_integer("pairs", 7, "Turns of each.")
_STEPS = flags.DEFINE_integer("steps", 2, "Steps in a turn.")
_THREADS = flags.DEFINE_integer("threads", 2, "Threads of each.")

_BATCH = 16
_VOCAB = 30522


def _build_ours(precision):
    import keras
    import tensorflow as tf

    from bert_tf.config import BertConfig
    from bert_tf.distribute import batches as batches_lib
    from bert_tf.distribute import devices as device_setup
    from bert_tf.modeling.bert import BertForPretraining
    from bert_tf.training import step as training_step
    from bert_tf.training.losses import PretrainingObjective
    from bert_tf.training.optimizer import build_optimizer

    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(0)
    strategy = device_setup.build_strategy("one_device")
    with strategy.scope():
        model = BertForPretraining(
            BertConfig(vocab_size=_VOCAB, type_vocab_size=2),
            fuse=True,
            dtype="float32" if precision == "float32" else "mixed_bfloat16",
        )
        optimizer = build_optimizer("bert_adam", 1e-4, 1000, 10)
        optimizer.build(model.trainable_variables)
    training = training_step.TrainingStep(
        strategy,
        model,
        PretrainingObjective(),
        optimizer,
        batches_lib.StepPlan(_BATCH),
    )
    batch = pretraining_batches.random_batch(_VOCAB, _BATCH)
    batch["example_index"] = list(range(_BATCH))
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    dataset = batches_lib.add_dropout_seeds(dataset, seed=1)
    iterator = batches_lib.distribute_batches(
        strategy, dataset, batches_lib.StepPlan(_BATCH)
    )
    return lambda steps: training.run(iterator, steps)


def _build_keras_hub(precision):
    import keras
    import keras_hub

    keras.config.set_dtype_policy(
        "float32" if precision == "float32" else "mixed_bfloat16"
    )
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=_VOCAB,
        num_layers=12,
        num_heads=12,
        hidden_dim=768,
        intermediate_dim=3072,
        dropout=0.1,
        max_sequence_length=512,
    )
    model = keras_hub.models.BertMaskedLM(backbone, preprocessor=None)
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-4),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    batch = pretraining_batches.random_batch(_VOCAB, _BATCH)
    inputs = {
        "token_ids": batch["input_ids"],
        "padding_mask": batch["input_mask"],
        "segment_ids": batch["segment_ids"],
        "mask_positions": batch["masked_lm_positions"],
    }

    def run(steps):
        for _ in range(steps):
            model.train_on_batch(
                inputs, batch["masked_lm_ids"], batch["masked_lm_weights"]
            )

    return run


_BUILDERS = {"bert_tf": _build_ours, "KerasHub": _build_keras_hub}


def _serve(name, precision, threads, pipe):
    """Runs as many steps as the pipe says; answers with the seconds."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    run = _BUILDERS[name](precision)
    run(1)
    run(1)
    pipe.send(0.0)
    while steps := pipe.recv():
        start = time.perf_counter()
        run(steps)
        pipe.send(time.perf_counter() - start)


def main(argv):
    del argv
    context = multiprocessing.get_context("spawn")
    pipes = {}
    for name in _BUILDERS:
        pipes[name], theirs = context.Pipe()
        arguments = (name, _PRECISION.value, _THREADS.value, theirs)
        context.Process(target=_serve, args=arguments, daemon=True).start()
        pipes[name].recv()
    tokens = _STEPS.value * _BATCH * pretraining_batches.LENGTH
    ratios = []
    for pair in range(_PAIRS.value):
        rates = {}
        # Who goes first changes, in case the turn before leaves heat behind.
        for name in sorted(pipes, reverse=bool(pair % 2)):
            pipes[name].send(_STEPS.value)
            rates[name] = tokens / pipes[name].recv()
        ratios.append(rates["bert_tf"] / rates["KerasHub"])
        shown = "  ".join(f"{n} {r:6.0f} tokens/s" for n, r in rates.items())
        print(f"pair {pair + 1}: {shown}  ratio {ratios[-1]:.2f}", flush=True)
    for pipe in pipes.values():
        pipe.send(0)
    print(
        f"bert_tf / KerasHub, {_PRECISION.value}: median "
        f"{statistics.median(ratios):.2f} (from {min(ratios):.2f} to "
        f"{max(ratios):.2f})"
    )


if __name__ == "__main__":
    app.run(main)
