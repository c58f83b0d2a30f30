"""Lists answers by offsets that differ from the original's alignment.

  python benchmarks/answer_texts.py \
      --squad_file=../shared/data/squad/dev-v1.1.json.gz --vocab_file=vocab.txt

Compares random spans of each paragraph: words and punctuation of at most 30
tokens. White space counts as one space, as in the original. Prints each
difference, and the number of differences.
"""

import random

import runs
from absl import flags

from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad import features as squad_features
from bert_tf.tasks.squad import predictions as squad_predictions
from bert_tf.text.tokenizer import BertTokenizer

_SQUAD_FILE = flags.DEFINE_string(
    "squad_file", None, "SQuAD JSON with paragraphs.", required=True
)
_VOCAB_FILE = flags.DEFINE_string(
    "vocab_file", None, "Vocabulary.", required=True
)
_LOWER_CASE = flags.DEFINE_bool("do_lower_case", True, "Lower-case the text.")
_SPANS = flags.DEFINE_integer("spans", 20, "Spans of each paragraph.")

_LONGEST = 30
_SHOWN = 30  # Characters before and after a span.


def main():
    tokenizer = BertTokenizer.from_vocab_file(
        _VOCAB_FILE.value, _LOWER_CASE.value
    )
    contexts = dict.fromkeys(
        paragraph["context"]
        for article in squad_examples.read_dataset(_SQUAD_FILE.value)
        for paragraph in article["paragraphs"]
    )
    examples = [squad_examples.make_example("", "?", x) for x in contexts]
    original = squad_predictions.OriginalTexts(
        tokenizer, (word for one in examples for word in one.doc_tokens)
    )
    # The length is huge, so that each paragraph is one window.
    windows = squad_features.convert_examples_to_features(
        examples, tokenizer, max_seq_length=1 << 20
    )
    rng = random.Random(0)
    num_spans = num_differing = 0
    for window in windows:
        example = examples[window.example_index]
        tokens = [tokenizer.vocabulary.tokens[x] for x in window.input_ids]
        # The last begin is [SEP], so no span starts there.
        begins = range(window.doc_offset, len(tokens))
        begins = [n for n in begins if not tokens[n].startswith("##")]
        for _ in range(_SPANS.value):
            start = rng.choice(begins[:-1])
            after = [n for n in begins if start < n <= start + _LONGEST]
            end = rng.choice(after or [start + 1]) - 1
            aligned, *_ = original.find(example, window, start, end)
            text, first, last = squad_predictions.find_text(
                example, window, start, end
            )
            num_spans += 1
            if " ".join(squad_examples.split_words(text)[0]) != aligned:
                num_differing += 1
                before = example.context[max(first - _SHOWN, 0) : first]
                behind = example.context[last : last + _SHOWN]
                print(f"paragraph: ...{before}[{text}]{behind}...")
                print(f"original:  {aligned}")
                print(f"offsets:   {text}\n")
    print(f"{num_differing} of {num_spans} spans differ.")


if __name__ == "__main__":
    runs.main(main)
