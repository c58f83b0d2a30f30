r"""Exports a model as a SavedModel that takes strings, for TensorFlow Serving.

  python export/savedmodel.py --model_dir=output/mrpc/model \
      --output_dir=served/mrpc

Each export adds a numbered version of the model, such as served/mrpc/2. The
folder of a version appears only when the version is complete and verified.
"""

from bert_tf.flags.export import SavedModelConfig


def main(config: SavedModelConfig) -> None:
    from bert_tf.export import heads
    from bert_tf.serving import model_config

    model_config.choose_version(config.version, [config.output_dir])
    heads.check_export(config)
    from bert_tf.export import savedmodel

    savedmodel.run(config)
