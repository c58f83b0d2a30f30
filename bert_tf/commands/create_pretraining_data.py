r"""Makes records to pretrain BERT on from text.

Text is paragraphs, or one sentence a line with --nosplit_sentences; blank lines
stand between documents.

  python run/create_pretraining_data.py --input_file='text/*.txt.gz' \
      --vocab_file=data/vocab.txt --output_file=data/pretraining/text.tfrecord \
      --max_seq_length=128 --max_predictions_per_seq=20
"""

from bert_tf.flags.data import CreatePretrainingDataConfig


def main(config: CreatePretrainingDataConfig) -> None:
    # So that --help answers at once.
    from bert_tf.data import create as pretraining_data

    pretraining_data.create(config)
