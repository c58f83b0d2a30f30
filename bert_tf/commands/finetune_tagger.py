r"""Fine-tunes a BERT to tag words: which of them name a person, a place, ...

CoNLL-2003, or any file with a word and its tag (IOB1 or IOB2) a line:

  python run/finetune_tagger.py --data_dir=conll2003 \
      --pretrained_model_dir=bert_base_cased --output_dir=output/conll \
      --max_seq_length=512 --do_train --do_eval --do_predict

One's own files, with a line that names the columns:

  python run/finetune_tagger.py --train_file=train.tsv --dev_file=dev.tsv \
      --word_column=token --tag_column=ner --pretrained_model_dir=bert_base \
      --output_dir=output/own --do_train --do_eval

The paper's other way, BiLSTMs on top of an encoder that stays as it is:

  --approach=feature_based --layer_combination=concat_last_four_hidden

Started again, it goes on where its last checkpoint is.
"""

from bert_tf.flags.tagger import TaggerConfig


def main(config: TaggerConfig) -> None:
    # Here, so --help answers at once.
    from bert_tf.finetuning import run as finetuning
    from bert_tf.tasks.tagging import flags as tagging_flags

    finetuning.run(config, tagging_flags.build_task)
