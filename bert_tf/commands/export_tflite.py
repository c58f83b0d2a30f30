r"""Writes a model as a .tflite file, for phones and other small devices.

  python export/tflite.py --model_dir=output/mrpc/model \
      --output_file=on_device/mrpc.tflite

It takes ids and has TensorFlow Lite's own operators only; with --input=text it
takes strings and has TF-Text's, too.
"""

from bert_tf.flags.export import TfliteConfig


def main(config: TfliteConfig) -> None:
    # So --help answers at once.
    from bert_tf.export.tflite import run as tflite_export

    tflite_export.run(config)
