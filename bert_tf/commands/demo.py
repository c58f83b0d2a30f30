r"""From the text on this machine to a tiny BERT and a served classifier.

  python run/demo.py --output_dir=.demo

A second run goes on where the first one stopped, or finishes at once.
"""

from bert_tf.flags.demo import DemoConfig


def main(config: DemoConfig) -> None:
    # Here, so that --help answers at once.
    from bert_tf.demo import run as demo

    demo.run(config)
