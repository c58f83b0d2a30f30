r"""Times conversions of a checkpoint of BERT-base's size, and their memory.

  python benchmarks/checkpoint_conversion.py

The checkpoint is made first: random weights, both pretraining heads, 30,522
tokens. Each conversion runs in its own process. Seconds and memory are measured
from the end of the imports. Memory is the peak, with pages of mapped files,
minus the memory after the imports, as a multiple of the size of the checkpoint
that is read. "script" is the time of the whole process. The peer is `cp`, with
the copy flushed to the disk like a conversion's output. The last line has the
worst seconds, memory and ratio to `cp`.
"""

import os
import shutil
import tempfile
import time

import runs
from absl import flags

_OPTIMIZER = flags.DEFINE_bool(
    "optimizer", False, "Whether the checkpoint has Adam's moments as well."
)
_EXACT_GELU = flags.DEFINE_bool(
    "exact_gelu",
    False,
    "Give the model the exact GELU; its conversion to KerasHub also computes "
    "the difference.",
)
_FORMATS = flags.DEFINE_list(
    "formats",
    ["huggingface", "bert_tf", "keras_hub", "model_garden"],
    "Formats to convert to from TF1, and back.",
)

_VOCAB_SIZE = 30522


def _make_checkpoint(folder, optimizer, hidden_act):
    """Writes a checkpoint in the original's format with random weights."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import numpy as np

    from bert_tf.checkpoints import weight_map
    from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
    from bert_tf.config import BertConfig
    from bert_tf.io import files

    rng = np.random.default_rng(0)
    config = BertConfig(
        vocab_size=_VOCAB_SIZE, type_vocab_size=2, hidden_act=hidden_act
    )
    tensors = {"global_step": np.int64(1000)} if optimizer else {}
    for name, shape in weight_map.shapes(config, "pretraining").items():
        for suffix in ("", "/adam_m", "/adam_v") if optimizer else ("",):
            values = rng.standard_normal(shape, np.float32)
            tensors[name + suffix] = np.abs(values) * 0.02
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [f"word{n}" for n in range(_VOCAB_SIZE - len(special))]
    tf1_checkpoint.write(os.path.join(folder, "bert_model.ckpt"), tensors)
    files.write_text(os.path.join(folder, "bert_config.json"), config.to_json())
    files.write_text(
        os.path.join(folder, "vocab.txt"), "\n".join([*special, *words, ""])
    )


def _convert(source_format, target_format, source, target, exact_gelu):
    """Runs one conversion; returns its seconds and bytes of memory."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    from bert_tf.checkpoints import convert as conversion
    from bert_tf.checkpoints import formats
    from bert_tf.commands.convert_checkpoint import ConvertCheckpointConfig

    for name in (source_format, target_format):
        formats.module_of(name)
    if "keras_hub" in (source_format, target_format):
        import keras_hub  # noqa: F401
    config = ConvertCheckpointConfig(
        source_format=source_format,
        target_format=target_format,
        input=source,
        output=target,
        allow_activation_change=exact_gelu and target_format == "keras_hub",
    )
    with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
        file.write("5")  # Resets the peak, which the imports have reached.
    before = runs.memory_status("VmRSS")
    start = time.perf_counter()
    conversion.run(config)
    seconds = time.perf_counter() - start
    return seconds, runs.memory_status("VmHWM") - before


def _size(folder):
    return sum(
        os.path.getsize(os.path.join(path, name))
        for path, _, names in os.walk(folder)
        for name in names
    )


def _copy(source, target):
    """Returns the seconds that copying takes."""
    start = time.perf_counter()
    shutil.copytree(source, target)
    for path, _, names in os.walk(target):
        for name in names:
            descriptor = os.open(os.path.join(path, name), os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
    seconds = time.perf_counter() - start
    shutil.rmtree(target)
    return seconds


def _measure(source_format, target_format, source, target):
    """Prints a line; returns seconds, ratio to cp and multiple in memory."""
    size = _size(source)
    copying = _copy(source, f"{target}.copy")
    start = time.perf_counter()
    seconds, memory = runs.in_new_process(
        _convert,
        source_format,
        target_format,
        source,
        target,
        _EXACT_GELU.value,
    )
    script = time.perf_counter() - start
    print(
        f"{source_format:12} -> {target_format:12} {size / 1e6:6.0f} MB "
        f"{seconds:6.1f} s (script {script:5.1f} s, cp {copying:4.1f} s) "
        f"{memory / 1e6:6.0f} MB, {memory / size:.2f} x its size",
        flush=True,
    )
    return seconds, seconds / copying, memory / size


def main():
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        tf1 = os.path.join(folder, "tf1")
        hidden_act = "gelu_erf" if _EXACT_GELU.value else "gelu"
        runs.in_new_process(_make_checkpoint, tf1, _OPTIMIZER.value, hidden_act)
        for name in _FORMATS.value:
            there = os.path.join(folder, name)
            back = os.path.join(folder, "back")
            measured.append(_measure("tf1", name, tf1, there))
            measured.append(_measure(name, "tf1", there, back))
            shutil.rmtree(there)
            shutil.rmtree(back)
    seconds, ratios, multiples = (max(x) for x in zip(*measured, strict=True))
    print(
        f"worst: {seconds:.1f} s, {multiples:.2f} x the checkpoint's size in "
        f"memory, {ratios:.1f} x the time of cp"
    )


if __name__ == "__main__":
    runs.main(main)
