r"""Counts the operations and XLA launches of a training step, without running.

  python benchmarks/step_operations.py
  python benchmarks/step_operations.py --size=tiny --length=64

A GPU waits for its host if a step has many operations, because each takes the
host some 10 microseconds. The step is traced as for each device, so no GPU is
needed. Constants and identities do not count. The body of a loop counts once,
and a compiled function counts as one operation.
"""

import os

import pretraining_batches
import runs
from absl import flags

_SIZE = flags.DEFINE_enum("size", "base", ["tiny", "base", "large"], "Model.")
_LENGTH = flags.DEFINE_integer("length", 128, "Tokens of a sequence.")
_BATCH = flags.DEFINE_integer("batch_size", 16, "Sequences of a step.")
_PRECISION = flags.DEFINE_string(
    "mixed_precision", "bfloat16", "--mixed_precision of run/pretrain.py."
)

_FREE = ("Const", "Identity", "IdentityN", "NoOp", "_Arg", "_Retval")
_DEVICES = ("GPU", "CPU")
_XLA_FLAGS = ("auto", "on", "off")


def count(graph) -> tuple[int, int]:
    """Returns operations and launches in the body of the graph's loop."""
    functions = {
        function.signature.name: function
        for function in graph.as_graph_def().library.function
    }

    def count_function(name):
        operations = launches = 0
        for node in functions[name].node_def:
            if node.op in _FREE:
                continue
            operations += 1
            called = [
                attribute.func.name
                for attribute in node.attr.values()
                if attribute.func.name in functions
            ] + [
                function.name
                for attribute in node.attr.values()
                for function in attribute.list.func
                if function.name in functions
            ]
            if any(functions[f].attr["_XlaMustCompile"].b for f in called):
                launches += 1
                continue
            for more in map(count_function, called):
                operations += more[0]
                launches += more[1]
        return operations, launches

    (loop,) = (op for op in graph.get_operations() if "While" in op.type)
    return count_function(loop.get_attr("body").name)


def main():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    for kind in _DEVICES:
        for xla in _XLA_FLAGS:
            _, step, iterator = pretraining_batches.build_step(
                _SIZE.value,
                _LENGTH.value,
                _BATCH.value,
                kind,
                xla=xla,
                mixed_precision=_PRECISION.value,
            )
            graph = step._run.get_concrete_function(
                iterator, tf.TensorSpec([], tf.int32)
            ).graph
            operations, launches = count(graph)
            print(
                f"{_SIZE.value}, {_BATCH.value} x {_LENGTH.value}, {kind}, "
                f"--xla={xla}: {operations:,} operations, {launches} launches",
                flush=True,
            )


if __name__ == "__main__":
    runs.main(main)
