r"""Tokenizes a text file: one line of text in, one line of JSON out.

  python run/tokenize_file.py --vocab_file=data/vocab.txt \
      --input_file=text.txt --output_file=tokens.jsonl

Each line of the output is {"ids": [...], "tokens": [...], "offsets": [[start,
end], ...]}; offsets are bytes of the line of text.
"""

import dataclasses

from bert_tf.flags import options
from bert_tf.flags.groups import NormalizationConfig


@dataclasses.dataclass(frozen=True)
class TokenizeFileConfig(NormalizationConfig):
    """Flags of run/tokenize_file.py."""

    vocab_file: str = options.data(
        help_text="Vocabulary, one token a line.", reads="file"
    )
    input_file: str = options.data(
        help_text="UTF-8 text file; only \\n ends a line.", reads="file"
    )
    output_file: str = options.output(
        help_text="JSON lines to write: ids, tokens and byte offsets of each "
        "line."
    )
    preserve_special_tokens: bool = options.data(
        False,
        "Keep special tokens such as [MASK] whole where the text contains "
        "them.",
    )


def main(config: TokenizeFileConfig) -> None:
    from bert_tf.text.vocabulary import Vocabulary

    Vocabulary.from_file(config.vocab_file)  # Raises if it is bad.
    from bert_tf.inference import tokenize_file

    tokenize_file.run(config)
