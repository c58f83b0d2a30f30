r"""Predicts the rows of a file with a fine-tuned model.

  python run/predict.py --model_dir=output/mrpc/model --input_file=pairs.csv \
      --output_file=predictions.jsonl

The columns are those of the training data; labels are not read. The output is
JSON lines, or a table:

  python run/predict.py --model_dir=output/mrpc/model --input_file=pairs.csv \
      --output_file=predictions.csv --keep_columns=id,text --top_k=3

It appears when it is complete.
"""

from bert_tf.distribute import cpu
from bert_tf.distribute import packed_weights
from bert_tf.flags.predict import PredictConfig


def main(config: PredictConfig) -> None:
    from bert_tf.tasks import inputs

    inputs.check_prediction(config)
    if cpu.computes_in_bfloat16(config.mixed_precision):
        packed_weights.assume()
    from bert_tf.inference import predict

    predict.run(config)
