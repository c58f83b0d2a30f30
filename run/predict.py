r"""Predicts the rows of a file with a fine-tuned model, as JSON lines.

  python run/predict.py --model_dir=output/mrpc/model --input_file=pairs.csv \
      --output_file=predictions.jsonl

The columns are those that the model was trained with; labels are not read. The
output appears when it is whole.
"""

from bert_tf import cli
from bert_tf.run_config.predict import PredictConfig


def main(config: PredictConfig) -> None:
    from bert_tf.serving import predict  # So --help answers at once.

    predict.run(config)


if __name__ == "__main__":
    cli.run(main, PredictConfig)
