r"""Converts a BERT from one project's format to another's.

  python run/convert_checkpoint.py --input=bert-base-uncased \
      --to=huggingface --output=bert-base

Formats: tf1 (the original's checkpoints), huggingface, keras_hub, model_garden
and bert_tf (a model directory); --input may also be a SavedModel of TF Hub or
Kaggle, tf_hub. The format of --input is detected, unless --from names it.
Prints the weights that were loaded, missing, unused and rearranged; a missing
or unused weight is an error unless --allow_missing matches it.
"""

from bert_tf.flags.convert import ConvertCheckpointConfig


def main(config: ConvertCheckpointConfig) -> None:
    from bert_tf.checkpoints import convert as conversion

    conversion.run(config)
