r"""Writes a model's activations for each token of each line, as JSON lines.

  python run/extract_features.py --input_file=lines.txt \
      --output_file=features.jsonl --model_dir=output/model --layers=-1,-2

The model may be of any format. A bare checkpoint of the original needs these
flags instead of --model_dir:

      --bert_config_file=bert_config.json --init_checkpoint=bert_model.ckpt \
      --vocab_file=vocab.txt
"""

import dataclasses

from bert_tf.errors import UserError
from bert_tf.flags import options
from bert_tf.flags.groups import ModelSourceConfig


@dataclasses.dataclass(frozen=True)
class ExtractFeaturesConfig(ModelSourceConfig):
    """Flags of run/extract_features.py; all but the last are the original's.

    --model_dir and --init_checkpoint accept a model of any format. Set
    --bert_config_file and --vocab_file for files not next to the model.
    """

    input_file: str = options.data(
        "One text per line; ' ||| ' separates the two texts of a pair.",
        options.REQUIRED,
        reads="file",
    )
    output_file: str = options.output(
        "JSON lines to write, in the original's format.",
        options.REQUIRED,
        endings=".jsonl",
    )
    layers: str = options.evaluation(
        "Layers to write, separated by commas; by default, a smaller model "
        "writes those of the four that it has.",
        "-1,-2,-3,-4",
    )
    bert_config_file: str | None = options.model(
        "Model configuration (default: the one next to the model).",
        reads="file",
    )
    max_seq_length: int = options.data(
        "Maximum sequence length, in tokens.", 128, at_least=3
    )
    init_checkpoint: str | None = options.model(
        "Model: any format, or a checkpoint's prefix.", reads="model"
    )
    vocab_file: str | None = options.model(
        "Vocabulary, one token a line (default: the model's).", reads="file"
    )
    do_lower_case: bool = options.data("Lower-case the text.", True)
    batch_size: int = options.hardware(
        "Texts computed at once.", 32, at_least=1
    )
    use_tpu: bool = options.ignored(False)
    master: str | None = options.ignored()
    num_tpu_cores: int | None = options.ignored()
    use_one_hot_embeddings: bool = options.ignored(False)
    model_dir: str | None = options.model(
        "Model of any format; replaces --bert_config_file, --init_checkpoint "
        "and --vocab_file.",
        reads="model",
        not_with=("bert_config_file", "init_checkpoint", "vocab_file"),
    )

    def check(self) -> None:
        super().check()
        options.require(
            self.model_dir or self.init_checkpoint,
            "Give --model_dir, or --init_checkpoint with --bert_config_file "
            "and --vocab_file unless these are next to it.",
        )
        self.choose_layers()

    def choose_layers(self, num_layers: int | None = None) -> list[int]:
        """Returns the layers to write; by default those of a model, up to four.

        Only with `num_layers`, layers that a model lacks are an error.
        """
        try:
            layers = [int(part) for part in self.layers.split(",")]
        except ValueError as error:
            raise UserError(
                "--layers must be whole numbers separated by commas, such as "
                f"-1,-2. Received: {self.layers!r}."
            ) from error
        if self.layers == type(self).layers:
            layers = layers[:num_layers]
        for layer in layers if num_layers else ():
            options.require_layer("--layers", layer, num_layers)
        return layers


def main(config: ExtractFeaturesConfig) -> None:
    from bert_tf.checkpoints import task_values
    from bert_tf.io import text_files
    from bert_tf.tasks import stored_task

    text_files.check_starts(config.input_file)
    source = config.model_dir or config.init_checkpoint
    stored_task.check_length(config, source)
    config.choose_layers(task_values.read_size(source, "num_hidden_layers"))
    from bert_tf.inference import extract_features

    extract_features.run(config)
