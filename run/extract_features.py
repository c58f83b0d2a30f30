r"""Writes a model's activations for each piece of each line as JSON lines.

  python run/extract_features.py --input_file=lines.txt \
      --output_file=features.jsonl --model_dir=output/model --layers=-1,-2

The model may be of any format. With a checkpoint of the original that lies
alone, in place of --model_dir:

      --bert_config_file=bert_config.json --init_checkpoint=bert_model.ckpt \
      --vocab_file=vocab.txt
"""

from bert_tf import cli
from bert_tf.run_config.predict import ExtractFeaturesConfig


def main(config: ExtractFeaturesConfig) -> None:
    from bert_tf.serving import extract_features  # So --help answers at once.

    extract_features.run(config)


if __name__ == "__main__":
    cli.run(main, ExtractFeaturesConfig)
