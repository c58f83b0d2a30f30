r"""Extracts clean text for pretraining from dumps and data sets.

Reads Wikipedia's XML dumps, .jsonl, Parquet and text, drops duplicates, and
writes what run/learn_vocabulary.py and run/create_pretraining_data.py read. A
report with what was dropped, and why, is written next to it.

  python run/extract_text.py --input_file=enwiki-latest-pages-articles.xml.bz2 \
      --output_file=corpus/wiki.txt.gz --num_shards=16 --heldout_share=0.01
"""

from bert_tf.flags.corpus import ExtractTextConfig


def main(config: ExtractTextConfig) -> None:
    from bert_tf.corpus import run

    run.run(config)
