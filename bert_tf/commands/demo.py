"""Pretrains, fine-tunes and serves a tiny BERT on text from this machine.

  python run/demo.py --output_dir=.demo

A second run resumes where the first one stopped, or finishes at once.
"""

from bert_tf.flags.predict import DemoConfig


def main(config: DemoConfig) -> None:
    from bert_tf.demo import run as demo

    demo.run(config)
