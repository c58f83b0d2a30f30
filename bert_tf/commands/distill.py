r"""Distills a large, fine-tuned BERT into a small one.

The teacher's model directory defines the task; the data flags are those of the
script that trained it:

  python run/distill.py --teacher_dir=output/topics/model \
      --num_hidden_layers=4 --hidden_size=256 --train_file=train.csv \
      --dev_file=dev.csv --output_dir=output/small --do_train --do_eval

A student of the teacher's width, the default, is initialized with some of the
teacher's layers, a student of another width randomly, and with
--pretrained_model_dir the student is an existing model. --unlabeled_file adds
unlabeled text.

The output directory has the same files as in fine-tuning, and run/predict.py
and the scripts in export/ accept its model. Rerun the same command to resume
from the last checkpoint.
"""

from bert_tf.flags.distill import DistillConfig


def main(config: DistillConfig) -> None:
    from bert_tf.distillation import inputs

    inputs.check(config)
    from bert_tf.distillation import run as distillation

    distillation.run(config)
