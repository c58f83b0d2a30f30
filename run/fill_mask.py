r"""Shows what a pretrained model would put in place of each [MASK].

  python run/fill_mask.py --model_dir=output/model \
      --text='The [MASK] returns a new array.'

A text may have several [MASK]s; each is filled while the others stay. The
model may be of any format, for instance a Hugging Face directory.
"""

from bert_tf import cli
from bert_tf.run_config.predict import FillMaskConfig


def main(config: FillMaskConfig) -> None:
    from bert_tf.serving import fill_mask  # So that --help answers at once.

    fill_mask.run(config)


if __name__ == "__main__":
    cli.run(main, FillMaskConfig)
