r"""Writes a model as a SavedModel that takes strings, for TensorFlow Serving.

  python export/savedmodel.py --model_dir=output/mrpc/model \
      --output_dir=served/mrpc

The next version of it appears, whole and verified, as served/mrpc/1, 2, ...
"""

import pathlib
import sys

from bert_tf import cli
from bert_tf.run_config.export import SavedModelConfig


def main(config: SavedModelConfig) -> None:
    # Of a script only its own folder is on the path, not that of `export`.
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    from export import publishing  # So --help answers at once.

    publishing.run(config)


if __name__ == "__main__":
    cli.run(main, SavedModelConfig)
