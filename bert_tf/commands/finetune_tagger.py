r"""Fine-tunes a BERT to tag words, as in named-entity recognition.

CoNLL-2003, or any files with one word and its tag (IOB1 or IOB2) a line:

  python run/finetune_tagger.py --data_dir=conll2003 \
      --pretrained_model_dir=bert_base_cased --output_dir=output/conll \
      --max_seq_length=512 --do_train --do_eval --do_predict

Your own files, with a first line that names the columns:

  python run/finetune_tagger.py --train_file=train.tsv --dev_file=dev.tsv \
      --word_column=token --tag_column=ner --pretrained_model_dir=bert_base \
      --output_dir=output/own --do_train --do_eval

The paper's feature-based approach, BiLSTMs on top of a frozen encoder:

  --approach=feature_based --layer_combination=concat_last_four_hidden

Rerun the same command to resume from the last checkpoint.
"""

from bert_tf.flags.tagger import TaggerConfig


def main(config: TaggerConfig) -> None:
    from bert_tf.tasks.tagging import inputs

    inputs.check(config)
    from bert_tf.finetuning import run as finetuning
    from bert_tf.tasks.tagging import flags as tagging_flags

    finetuning.run(config, tagging_flags.build_task)
