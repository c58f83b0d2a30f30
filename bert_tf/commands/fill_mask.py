r"""Prints a pretrained model's best tokens for each [MASK] in a text.

  python run/fill_mask.py --model_dir=output/model \
      --text='The [MASK] returns a new array.'

Several [MASK] are predicted independently. The model may be of any format, for
instance a Hugging Face directory.
"""

from bert_tf.flags.predict import FillMaskConfig


def main(config: FillMaskConfig) -> None:
    from bert_tf.inference import fill_mask

    fill_mask.run(config)
