r"""Teaches a small BERT what a large, fine-tuned one knows.

The teacher's model directory says what the task is; data as for the script
that trained it:

  python run/distill.py --teacher_dir=output/topics/model \
      --num_hidden_layers=4 --hidden_size=256 --train_file=train.csv \
      --dev_file=dev.csv --output_dir=output/small --do_train --do_eval

A student as wide as its teacher, which is the default, begins with some of the
teacher's layers, one of another width at random, and --pretrained_model_dir
takes one that is there. --unlabeled_file adds text that nobody has labeled.

The output directory is that of fine-tuning, and run/predict.py and the scripts
in export/ take its model. Started again, it goes on where its last checkpoint
is.
"""

from bert_tf.flags.distill import DistillConfig


def main(config: DistillConfig) -> None:
    # So --help answers at once.
    from bert_tf.distillation import run as distillation

    distillation.run(config)
