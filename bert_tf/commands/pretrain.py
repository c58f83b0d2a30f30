r"""Pretrains a BERT on the records of run/create_pretraining_data.py.

  python run/pretrain.py --flagfile=base.flags

or, flag by flag:

  python run/pretrain.py --bert_config_file=configs/tiny/bert_config.json \
      --input_file=data/pretraining/*.tfrecord --output_dir=output/tiny \
      --do_train --do_eval --num_train_steps=1000 --num_warmup_steps=100

Rerun the same command to resume from the last checkpoint. --init_checkpoint
loads the weights of a model of any format; with --init_optimizer_state it also
loads the optimizer's state and the step, to continue that model's training.
"""

from bert_tf.flags.pretrain import PretrainConfig


def main(config: PretrainConfig) -> None:
    from bert_tf.pretraining import run as pretraining

    pretraining.train_and_evaluate(config)
