r"""Tokenizes a text file: one line of text in, one line of JSON out.

  python run/tokenize_file.py --vocab_file=data/vocab.txt \
      --input_file=text.txt --output_file=tokens.jsonl

Each line of the output is {"ids": [...], "tokens": [...], "offsets": [[start,
end], ...]}; offsets are bytes of the line of text.
"""

from bert_tf.flags.data import TokenizeFileConfig


def main(config: TokenizeFileConfig) -> None:
    from bert_tf.inference import tokenize_file

    tokenize_file.run(config)
