r"""Writes a model's activations for each token of each line, as JSON lines.

  python run/extract_features.py --input_file=lines.txt \
      --output_file=features.jsonl --model_dir=output/model --layers=-1,-2

The model may be of any format. A bare checkpoint of the original needs these
flags instead of --model_dir:

      --bert_config_file=bert_config.json --init_checkpoint=bert_model.ckpt \
      --vocab_file=vocab.txt
"""

import dataclasses

from bert_tf.flags import options
from bert_tf.flags.groups import ModelSourceConfig


@dataclasses.dataclass(frozen=True)
class ExtractFeaturesConfig(ModelSourceConfig):
    """Flags of run/extract_features.py; all but the last are the original's.

    --model_dir and --init_checkpoint accept a model of any format. Set
    --bert_config_file and --vocab_file for files not next to the model.
    """

    input_file: str = options.data(
        help_text="One text per line; ' ||| ' separates the two texts of a "
        "pair.",
        reads="file",
    )
    output_file: str = options.output(
        help_text="JSON lines to write, in the original's format."
    )
    layers: str = options.evaluation(
        "-1,-2,-3,-4",
        "Layers to write, separated by commas; of the default a smaller model "
        "writes the layers it has.",
    )
    bert_config_file: str | None = options.model(
        None,
        "Model configuration (default: the one next to the model).",
        reads="file",
    )
    max_seq_length: int = options.data(
        128, "Maximum sequence length, in tokens.", at_least=3
    )
    init_checkpoint: str | None = options.model(
        None, "Model: any format, or a checkpoint's prefix.", reads="model"
    )
    vocab_file: str | None = options.model(
        None,
        "Vocabulary, one token a line (default: the model's).",
        reads="file",
    )
    do_lower_case: bool = options.data(True, "Lower-case the text.")
    batch_size: int = options.hardware(
        32, "Texts computed at once.", at_least=1
    )
    use_tpu: bool = options.ignored(False)
    master: str | None = options.ignored(None)
    num_tpu_cores: int | None = options.ignored(None)
    use_one_hot_embeddings: bool = options.ignored(False)
    model_dir: str | None = options.model(
        None,
        "Model of any format; replaces --bert_config_file, --init_checkpoint "
        "and --vocab_file.",
        reads="model",
        not_with=("bert_config_file", "init_checkpoint", "vocab_file"),
    )

    def check(self) -> None:
        super().check()
        options.require(
            bool(self.model_dir or self.init_checkpoint),
            "Give --model_dir, or --init_checkpoint with --bert_config_file "
            "and --vocab_file unless these are next to it.",
        )


def main(config: ExtractFeaturesConfig) -> None:
    from bert_tf.inference import extract_features

    extract_features.run(config)
