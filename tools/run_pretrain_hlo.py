"""Trains runs that tools/pretrain_hlo.py wrote, with jax and no TensorFlow.

  python -m tools.run_pretrain_hlo --output=$OUT hlo/bert hlo/no_nsp

The workers of run/create_pretraining_data.py make the records, in memory. Each
epoch reads the records in another random order. `bert-N.npz` has the weights
after N steps.
"""

import argparse
import concurrent.futures
import functools
import multiprocessing
import os
import pickle
import time

import jax
import jaxlib
import numpy as np

from bert_tf.data.generators import streaming_worker
from tools.time_step_hlo import Program


def _make_part(arguments):
    """Returns the batches of a part of the records."""
    return [batch for batch, _ in streaming_worker.make_part(*arguments)]


def make_records(plan, pool):
    """Returns the features of all records, <int or float32>[records, ...]."""
    parts = pool.map(_make_part, [(plan, x) for x in range(plan.num_parts)])
    batches = [batch for part in parts for batch in part]
    return {
        name: np.concatenate([np.asarray(x[name]) for x in batches])
        for name in batches[0]
    }


# Several runs may have one program, and compiling takes longer than training.
compile_program = functools.cache(Program)


class Run:
    """A compiled step, its variables and its records, on the device."""

    def __init__(self, folder, store_folder, pool):
        with open(os.path.join(folder, "run.pickle"), "rb") as file:
            self.run = pickle.load(file)
        with open(os.path.join(folder, "step.pb"), "rb") as file:
            self._program = compile_program(file.read())
        arguments = self.run["arguments"]
        self._values = [jax.numpy.asarray(x) for x in arguments]
        self._values += [jax.numpy.asarray(x) for x in self.run["variables"]]
        plan = self.run["plan"]
        object.__setattr__(plan, "store_folder", store_folder)
        records = make_records(plan, pool)
        self.num_records = len(records["input_ids"])
        # Features that records lack, such as dropout seeds, keep their values.
        self._fed = [
            number
            for number, name in enumerate(self.run["features"])
            if name in records
        ]
        self._records = tuple(
            jax.numpy.asarray(
                records[self.run["features"][x]]
                .reshape(-1, *arguments[x].shape[1:])
                .astype(arguments[x].dtype)
            )
            for x in self._fed
        )
        self._take = jax.jit(lambda data, rows: tuple(x[rows] for x in data))

    def train(self, save, seed):
        """Runs all steps; calls `save` with a step and its weights."""
        size, steps = self.run["batch_size"], self.run["steps"]
        rng = np.random.default_rng(seed)
        order = np.zeros(0, np.int32)
        begin = time.perf_counter()
        for step in range(1, steps + 1):
            if len(order) < size:
                order = np.append(order, rng.permutation(self.num_records))
            rows, order = order[:size], order[size:]
            batch = self._take(self._records, rows.astype(np.int32))
            for place, value in zip(self._fed, batch, strict=True):
                self._values[place] = value
            outputs = self._program.run(self._values)
            if step % 500 == 0 or step in (1, 100):
                loss = float(outputs[self.run["loss"]])
                seconds = time.perf_counter() - begin
                print(
                    f"  step {step}: loss {loss:.3f}, {seconds:.0f} s",
                    flush=True,
                )
            if step % self.run["save_every"] == 0 or step == steps:
                save(step, self._weights())

    def _weights(self):
        before = len(self.run["arguments"])
        return {
            name.replace("/", "|"): np.asarray(self._values[before + number])
            for number, name in enumerate(self.run["names"])
            if name
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--store", default="hlo/tokens")
    parser.add_argument(
        "--output", default="", help="Folder of weights (default: the runs')."
    )
    parser.add_argument(
        "--last_only", action="store_true", help="Keep only the last weights."
    )
    parser.add_argument("--stop_at_step", type=int, default=1 << 30)
    parser.add_argument("--seed", type=int, default=1, help="Seed of orders.")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(jax.devices()[0].device_kind, jaxlib.__version__, flush=True)
    with concurrent.futures.ProcessPoolExecutor(
        # jax has started threads, so a forked process may hang.
        mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for folder in options.folders:
            begin = time.perf_counter()
            run = Run(folder, options.store, pool)
            seconds = time.perf_counter() - begin
            print(
                f"{folder}: {run.num_records} records, ready in {seconds:.0f} "
                "s",
                flush=True,
            )
            output = os.path.join(
                options.output or os.path.dirname(folder),
                os.path.basename(folder),
            )

            last = run.run["steps"] = min(
                run.run["steps"], options.stop_at_step
            )

            def save(step, weights, output=output, last=last):
                if options.last_only and step != last:
                    return
                np.savez(f"{output}-{step}.npz", step=step, **weights)

            run.train(save, options.seed)


if __name__ == "__main__":
    main()
