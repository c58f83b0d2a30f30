r"""Shows what a pretrained model would put in place of each [MASK].

  python run/fill_mask.py --model_dir=output/model \
      --text='The [MASK] returns a new array.'

A text may have several [MASK]s; each is filled while the others stay. The
model may be of any format, for instance a Hugging Face directory.
"""

from bert_tf.flags.predict import FillMaskConfig


def main(config: FillMaskConfig) -> None:
    # So that --help answers at once.
    from bert_tf.inference import fill_mask

    fill_mask.run(config)
