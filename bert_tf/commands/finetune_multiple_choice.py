r"""Fine-tunes a BERT to choose: which of several texts goes with a context.

SWAG, CODAH and ComVE, from their official files:

  python run/finetune_multiple_choice.py --task_name=swag --data_dir=swag \
      --pretrained_model_dir=bert_base --output_dir=output/swag \
      --train_batch_size=16 --learning_rate=2e-5 \
      --do_train --do_eval --do_predict

or one's own .csv, .tsv or .jsonl, with any number of choices:

  python run/finetune_multiple_choice.py --task_name=custom \
      --train_file=train.csv --dev_file=dev.csv --choice_columns=a,b,c \
      --context_column=question --label_column=answer ...

Started again, it goes on where its last checkpoint is.
"""

from bert_tf.flags.multiple_choice import MultipleChoiceConfig


def main(config: MultipleChoiceConfig) -> None:
    # Here, so --help answers at once.
    from bert_tf.finetuning import run as finetuning
    from bert_tf.tasks.multiple_choice import flags as multiple_choice_flags

    finetuning.run(config, multiple_choice_flags.build_task)
