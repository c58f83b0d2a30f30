r"""Writes a model as a SavedModel that takes strings, for TensorFlow Serving.

  python export/savedmodel.py --model_dir=output/mrpc/model \
      --output_dir=served/mrpc

The next version of it appears, whole and verified, as served/mrpc/1, 2, ...
"""

from bert_tf.flags.export import SavedModelConfig


def main(config: SavedModelConfig) -> None:
    # So --help answers at once.
    from bert_tf.export import savedmodel

    savedmodel.run(config)
