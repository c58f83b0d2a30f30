r"""Writes a model as a .tflite file, for phones and other small devices.

  python export/tflite.py --model_dir=output/mrpc/model \
      --output_file=on_device/mrpc.tflite

It takes ids and has TensorFlow Lite's own operators only; with --input=text it
takes strings and has TF-Text's, too.
"""

import pathlib
import sys

from bert_tf import cli
from bert_tf.run_config.export import TfliteConfig


def main(config: TfliteConfig) -> None:
    # Of a script only its own folder is on the path, not that of `export`.
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    from export.on_device import building  # So --help answers at once.

    building.run(config)


if __name__ == "__main__":
    cli.run(main, TfliteConfig)
