r"""Times programs of tools/step_hlo.py with jax, without TensorFlow.

  python time_step_hlo.py steps/*.pb --json=steps.json

Weights are random, with the mean and deviation of initial weights. Each step
updates them in place, on the same batch. A large matrix product shows how much
of its peak the GPU reaches. XLA's options go into XLA_FLAGS as usual, for
instance --xla_gpu_exclude_nondeterministic_ops.
"""

import argparse
import json
import re
import statistics
import time

import jax
import jaxlib.xla_client
import numpy as np
from jax import numpy as jnp
from jax.extend import mlir


def find_aliases(text: str) -> dict[int, int]:
    """Maps each output that reuses a parameter's memory to the parameter."""
    pairs = re.findall(r"\{(\d+)\}: \((\d+), \{\}, \w+-alias\)", text)
    return {int(output): int(parameter) for output, parameter in pairs}


def draw(key, shape, dtype, mean, deviation):
    """Returns the values of a variable, on the device."""
    noise = deviation * jax.random.normal(key, shape, "float32")
    return (mean + noise).astype(dtype)


def measure_product(size: int, steps: int) -> float:
    """Returns the TFLOP/s of products of square bfloat16 matrices."""
    x = draw(jax.random.key(1), (size, size), "bfloat16", 0.0, 1.0)
    multiply = jax.jit(jnp.matmul)
    for count in (3, steps):
        begin = time.perf_counter()
        jax.block_until_ready([multiply(x, x) for _ in range(count)])
    return 2 * size**3 * steps / (time.perf_counter() - begin) / 1e12


class Program:
    """A compiled HLO program that updates its variables in place.

    Attributes:
      compiled: The executable of jax.
    """

    def __init__(self, program: bytes):
        computation = jaxlib.xla_client.XlaComputation(program)
        self._aliases = find_aliases(computation.as_hlo_text().split("\n")[0])
        device = jax.devices()[0]
        self.compiled = device.client.compile_and_load(
            mlir.hlo_to_stablehlo(program),
            jaxlib.xla_client.DeviceList((device,)),
            jaxlib.xla_client.CompileOptions(),
        )

    def run(self, values: list) -> list:
        """Replaces the variables among `values`; returns all outputs."""
        results = self.compiled.execute_sharded(values)
        outputs = [
            x for (x,) in results.disassemble_into_single_device_arrays()
        ]
        for output, parameter in self._aliases.items():
            values[parameter] = outputs[output]
        return outputs


class Step:
    """A compiled step with its weights.

    Attributes:
      about: The facts that tools/step_hlo.py wrote about the step.
      program: The `Program` of the step.
    """

    def __init__(self, path: str):
        with open(path, "rb") as file:
            self.program = Program(file.read())
        saved = dict(np.load(path.replace(".pb", ".npz")))
        self.about = json.loads(str(saved.pop("about")))
        self._loss = self.about.pop("loss")
        variables = self.about.pop("variables")
        keys = jax.random.split(jax.random.key(1), len(variables))
        self._values = [jnp.asarray(x) for x in saved.values()]
        self._values += [
            draw(key, *x) for key, x in zip(keys, variables, strict=True)
        ]

    def run(self, count: int) -> float:
        """Runs some steps and returns the loss of the last one."""
        for _ in range(count):
            outputs = self.program.run(self._values)
        return float(outputs[self._loss])


def main() -> None:
    """Compiles and times programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--peak",
        type=float,
        default=989.0,
        help="The GPU's dense TFLOP/s (default: of an H100 or H200).",
    )
    parser.add_argument("--json", default="steps.json", help="File to write.")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    product = measure_product(8192, 50)
    device = jax.devices()[0].device_kind
    print(f"{device}: product {product:.0f} TFLOP/s")
    results = []
    for path in options.paths:
        step = None  # Frees the memory of the previous step.
        seconds = []
        try:
            step = Step(path)
            first = step.run(3)
            for _ in range(options.rounds):
                begin = time.perf_counter()
                last = step.run(options.steps)
                seconds.append((time.perf_counter() - begin) / options.steps)
        except jax.errors.JaxRuntimeError as error:
            print(f"{path}: {str(error)[:300]}", flush=True)
            continue
        memory = step.program.compiled.get_compiled_memory_stats()
        median = statistics.median(seconds)
        result = step.about | {
            "seconds": seconds,
            "tokens_per_second": step.about["tokens"] / median,
            "share": step.about["flop"] / median / 1e12 / options.peak,
            "loss": [first, last],
            "bytes": memory.argument_size_in_bytes + memory.temp_size_in_bytes,
            "device": device,
            "jaxlib": jaxlib.__version__,
            "product_tflops": product,
        }
        print(
            f"{path}: {1000 * median:.2f} ms, "
            f"{result['tokens_per_second']:,.0f} tokens/s, "
            f"{100 * result['share']:.1f}% of {options.peak:g} TFLOP/s, loss "
            f"{first:.3f} to {last:.3f}, "
            f"{result['bytes'] / 1e9:.1f} GB",
            flush=True,
        )
        results.append(result)
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
