r"""Times a program of tools/step_hlo.py with jax, without TensorFlow.

  python time_step_hlo.py step --steps=50 --rounds=5 --peak=989

Weights and moments are random and positive; each step takes those of the step
before, in the same memory. XLA's options go into XLA_FLAGS as usual, for
instance --xla_gpu_exclude_nondeterministic_ops.
"""

import argparse
import re
import statistics
import time

import jax
import jaxlib.xla_client
import numpy as np
from jax import numpy as jnp

_DTYPES = {"pred": "bool", "f32": "float32", "s32": "int32", "s64": "int64"}


def parse_shape(text: str) -> tuple[tuple[int, ...], str]:
    """Returns dimensions and dtype of an HLO shape, as f32[3,4]{1,0}."""
    dtype, dimensions = re.match(r"(\w+)\[([\d,]*)\]", text).groups()
    return tuple(map(int, filter(None, dimensions.split(",")))), _DTYPES[dtype]


def find_aliases(text: str) -> dict[int, int]:
    """Returns output to parameter, for outputs in a parameter's memory."""
    pairs = re.findall(r"\{(\d+)\}: \((\d+), \{\}, \w+-alias\)", text)
    return {int(output): int(parameter) for output, parameter in pairs}


def main() -> None:
    """Compiles and times a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", help="Path without .pb and .npz.")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak", type=float, help="Dense TFLOP/s.")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    with open(f"{options.path}.pb", "rb") as file:
        computation = jaxlib.xla_client.XlaComputation(file.read())
    saved = np.load(f"{options.path}.npz")
    first = [saved[f"arr_{i}"] for i in range(len(saved.files) - 3)]
    shapes = [
        parse_shape(str(shape))
        for shape in computation.program_shape().parameter_shapes()
    ]
    rng = np.random.default_rng(1)
    values = [
        jnp.asarray(value)
        for value in first
        + [
            np.asarray(np.abs(0.02 * rng.standard_normal(shape)), dtype)
            for shape, dtype in shapes[len(first) :]
        ]
    ]
    aliases = find_aliases(computation.as_hlo_text().split("\n", 1)[0])
    device = jax.devices()[0]
    module = jaxlib._jax.mlir.xla_computation_to_mlir_module(computation)
    begin = time.perf_counter()
    program = device.client.compile_and_load(
        module,
        jaxlib.xla_client.DeviceList((device,)),
        jaxlib.xla_client.CompileOptions(),
    )
    print(f"compiled in {time.perf_counter() - begin:.1f} s", flush=True)
    memory = program.get_compiled_memory_stats()
    print(
        f"memory: {memory.argument_size_in_bytes / 1e9:.2f} GB of arguments, "
        f"{memory.temp_size_in_bytes / 1e9:.2f} GB besides"
    )

    def run(count):
        for _ in range(count):
            outputs = [
                x
                for (x,) in program.execute_sharded(
                    values
                ).disassemble_into_single_device_arrays()
            ]
            for output, parameter in aliases.items():
                values[parameter] = outputs[output]
        jax.block_until_ready(values)
        return outputs

    outputs = run(3)
    print("after 3 steps:", [float(x) for x in outputs if x.ndim == 0][:8])
    seconds = []
    for _ in range(options.rounds):
        begin = time.perf_counter()
        run(options.steps)
        seconds.append((time.perf_counter() - begin) / options.steps)
    median = statistics.median(seconds)
    rate = float(saved["flop"]) / median / 1e12
    share = f", {100 * rate / options.peak:.1f}%" if options.peak else ""
    print(
        f"{device.device_kind}, {saved['description']}: {1000 * median:.2f} ms "
        f"a step (from {1000 * min(seconds):.2f} to {1000 * max(seconds):.2f}),"
        f" {float(saved['tokens']) / median:,.0f} tokens/s, {rate:.1f} TFLOP/s"
        f"{share}"
    )


if __name__ == "__main__":
    main()
