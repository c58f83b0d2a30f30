r"""Fine-tunes a BERT to classify texts or pairs of texts, or to score them.

The tasks of GLUE, XNLI and SNLI, from their official files:

  python run/finetune_classifier.py --task_name=mrpc --data_dir=glue/MRPC \
      --pretrained_model_dir=bert_base --output_dir=output/mrpc \
      --do_train --do_eval --do_predict

The model may also be given by --vocab_file, --bert_config_file and
--init_checkpoint, as for the original's run_classifier.py. Your own .csv, .tsv
or .jsonl files:

  python run/finetune_classifier.py --task_name=custom --train_file=train.csv \
      --dev_file=dev.csv --test_file=test.csv --text_column=text \
      --label_column=label --pretrained_model_dir=bert_base \
      --output_dir=output/own --do_train --do_eval --do_predict

Rerun the same command to resume from the last checkpoint.
"""

from bert_tf.flags.classifier import ClassifierConfig


def main(config: ClassifierConfig) -> None:
    from bert_tf.tasks.classification import inputs

    inputs.check(config)
    from bert_tf.finetuning import run as finetuning
    from bert_tf.tasks.classification import flags as classification_flags

    finetuning.run(config, classification_flags.build_task)
