r"""Makes pretraining records from text.

The text is paragraphs, or with --nosplit_sentences one sentence a line; blank
lines separate documents.

  python run/create_pretraining_data.py --input_file='text/*.txt.gz' \
      --vocab_file=data/vocab.txt --output_file=data/pretraining/text.tfrecord \
      --max_seq_length=128 --max_predictions_per_seq=20
"""

from bert_tf.flags.data import CreatePretrainingDataConfig


def main(config: CreatePretrainingDataConfig) -> None:
    from bert_tf.data import create as pretraining_data

    pretraining_data.create(config)
