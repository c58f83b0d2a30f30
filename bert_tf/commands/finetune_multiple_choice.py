r"""Fine-tunes a BERT to choose one of several texts for a context.

SWAG, CODAH and ComVE, from their official files:

  python run/finetune_multiple_choice.py --task_name=swag --data_dir=swag \
      --pretrained_model_dir=bert_base --output_dir=output/swag \
      --train_batch_size=16 --learning_rate=2e-5 \
      --do_train --do_eval --do_predict

Your own .csv, .tsv or .jsonl files, with any number of choices:

  python run/finetune_multiple_choice.py --task_name=custom \
      --train_file=train.csv --dev_file=dev.csv --choice_columns=a,b,c \
      --context_column=question --label_column=answer ...

Rerun the same command to resume from the last checkpoint.
"""

from bert_tf.flags.classifier import MultipleChoiceConfig


def main(config: MultipleChoiceConfig) -> None:
    from bert_tf.tasks.multiple_choice import inputs

    inputs.check(config)
    from bert_tf.finetuning import run as finetuning
    from bert_tf.tasks.multiple_choice import task

    finetuning.run(config, task.build_task)
