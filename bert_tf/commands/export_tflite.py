r"""Exports a model as a .tflite file, for phones and other small devices.

  python export/tflite.py --model_dir=output/mrpc/model \
      --output_file=on_device/mrpc.tflite

The exported model takes token ids and uses only TensorFlow Lite's own
operators; with --input=text it takes strings and uses TF-Text's operators, too.
"""

from bert_tf import errors
from bert_tf.flags.export import TfliteConfig


def main(config: TfliteConfig) -> None:
    errors.require("tflite")
    from bert_tf.export import heads

    heads.check_export(config)
    from bert_tf.export.tflite import run as tflite_export

    tflite_export.run(config)
