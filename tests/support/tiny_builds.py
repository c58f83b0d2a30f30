"""Tiny .tflite files of every head, built as users build them."""

import atexit
import functools
import os
import shutil
import tempfile

from bert_tf.export.tflite import build as builds
from bert_tf.export.tflite import run as tflite_export
from bert_tf.flags.export import TfliteConfig
from bert_tf.modeling.task_models import BertForTagging
from tests.support import every_head
from tests.support import tiny_exports
from tests.support import tiny_model

_CONFIG = tiny_model.ONE_LAYER


@functools.cache
def folder():
    """Returns the folder of models and files in this process."""
    path = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, path)
    return path


@functools.cache
def config(name, **flags):
    """Writes a model of `every_head.NAMES`; returns the flags of its export."""
    model_dir, values = write_model(name)
    return TfliteConfig(
        **{
            "model_dir": model_dir,
            "output_file": os.path.join(folder(), f"{name}.tflite"),
            "quantization": "none",
            "dynamic_shapes": True,
        }
        | values
        | flags
    )


@functools.cache
def write_model(name):
    """Writes a model; returns its path and the flags of its export."""
    if name == "tagging":
        # Small weights, so rounding to float16 changes no prediction.
        task = tiny_exports.tagging()
        model = BertForTagging(_CONFIG, **task.model_arguments())
        weights = tiny_model.random_weights(model, scale=0.2)
        path = os.path.join(folder(), "tagging_model")
        return tiny_model.write_task(path, task, weights, _CONFIG), {}
    return every_head.write_model(folder(), name, _CONFIG)


@functools.cache
def make(name, **flags):
    """Returns a verified file as `tflite.run.Built`, without writing it."""
    return tflite_export.make(builds.prepare(config(name, **flags)))
