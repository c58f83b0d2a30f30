r"""Times the streaming generator of pretraining data against the original's.

  python benchmarks/data_creation.py --input_file='sentences/*.txt' \
      --vocab_file=data/vocab.txt --dupe_factor=10

Both read the same text, one sentence a line, with the flags' defaults otherwise
(128 tokens, 20 predictions), and take turns. The time is the generator's, from
input files to output files, without the import of TensorFlow, which takes
equally long in both. Memory is the sum over the process and its workers; shared
pages count once. The last line is the ratio of output tokens/s, streaming /
original; the original uses one core.
"""

import dataclasses
import os
import shutil
import statistics
import tempfile
import time

import runs
from absl import flags

_INPUT = flags.DEFINE_string(
    "input_file", None, "Globs; one sentence a line.", required=True
)
_VOCAB = flags.DEFINE_string(
    "vocab_file", None, "The vocabulary.", required=True
)
_DUPE_FACTOR = flags.DEFINE_integer("dupe_factor", 10, "--dupe_factor of both.")
_PROCESSES = flags.DEFINE_integer(
    "num_processes", 2, "Processes of the streaming generator."
)
_PAIRS = flags.DEFINE_integer("pairs", 1, "Turns of each.")


def _measure(generator, input_file, vocab_file, dupe_factor, num_processes):
    """Runs a generator; returns tokens, seconds, CPU seconds and memory."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    from bert_tf.commands.create_pretraining_data import (
        CreatePretrainingDataConfig,
    )
    from bert_tf.data.generators import original as original_generator
    from bert_tf.data.generators import streaming as streaming_generator
    from bert_tf.io import files
    from bert_tf.text.tokenizer import BertTokenizer

    folder = tempfile.mkdtemp()
    config = CreatePretrainingDataConfig(
        input_file=input_file,
        output_file=os.path.join(folder, "x.tfrecord"),
        vocab_file=vocab_file,
        dupe_factor=dupe_factor,
        split_sentences=False,
    )
    generate = streaming_generator.generate
    if generator == "original":
        config = dataclasses.replace(config, generator="original")
        generate = original_generator.generate
    else:
        config = dataclasses.replace(config, num_processes=num_processes)
    tokenizer = BertTokenizer.from_vocab_file(vocab_file)
    start, start_times = time.perf_counter(), os.times()
    with runs.watch(runs.total_memory, 0.5) as memory:
        result = generate(
            config,
            files.expand_globs(input_file),
            tokenizer,
            [config.output_file],
            os.path.join(folder, "work"),
        )
    seconds = time.perf_counter() - start
    # The sum has user and system time of this process and of ended workers.
    cpu = sum(os.times()[:4]) - sum(start_times[:4])
    shutil.rmtree(folder)
    return result.counts.num_pieces, seconds, cpu, max(memory)


def _run(generator):
    """Runs a generator, unaffected by the other's memory; returns its rate."""
    tokens, seconds, cpu, peak = runs.in_new_process(
        _measure,
        generator,
        _INPUT.value,
        _VOCAB.value,
        _DUPE_FACTOR.value,
        _PROCESSES.value,
    )
    print(
        f"{generator:9}: {tokens / 1e6:.1f} M tokens in {seconds:.1f} s "
        f"({cpu:.1f} s of CPU): {tokens / seconds / 1e6:.2f} M tokens/s, "
        f"{peak / 2**20:.0f} MiB",
        flush=True,
    )
    return tokens / seconds


def main():
    ratios = []
    for pair in range(_PAIRS.value):
        # The order alternates, in case a turn warms caches for the next.
        order = sorted(["original", "streaming"], reverse=bool(pair % 2))
        rates = {generator: _run(generator) for generator in order}
        ratios.append(rates["streaming"] / rates["original"])
    print(f"streaming / original: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    runs.main(main)
