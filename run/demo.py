r"""From the text on this machine to a tiny BERT and a served classifier.

  python run/demo.py --output_dir=.demo

A second run goes on where the first one stopped, or finishes at once.
"""

from bert_tf import cli
from bert_tf.run_config.demo import DemoConfig


def main(config: DemoConfig) -> None:
    from bert_tf import demo  # Here, so that --help answers at once.

    demo.run(config)


if __name__ == "__main__":
    cli.run(main, DemoConfig)
