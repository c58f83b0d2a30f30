r"""Writes a model's activations for each token of each line, as JSON lines.

  python run/extract_features.py --input_file=lines.txt \
      --output_file=features.jsonl --model_dir=output/model --layers=-1,-2

The model may be of any format. For a bare checkpoint of the original replace
--model_dir with:

      --bert_config_file=bert_config.json --init_checkpoint=bert_model.ckpt \
      --vocab_file=vocab.txt
"""

from bert_tf.flags.predict import ExtractFeaturesConfig


def main(config: ExtractFeaturesConfig) -> None:
    from bert_tf.inference import extract_features

    extract_features.run(config)
