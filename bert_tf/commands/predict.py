r"""Predicts the rows of a file with a fine-tuned model, as JSON lines.

  python run/predict.py --model_dir=output/mrpc/model --input_file=pairs.csv \
      --output_file=predictions.jsonl

The columns are those of the training data; labels are not read. The output
appears when it is complete.
"""

from bert_tf.flags.predict import PredictConfig


def main(config: PredictConfig) -> None:
    from bert_tf.inference import predict

    predict.run(config)
