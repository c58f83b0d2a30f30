r"""Writes the zip file for GLUE's leaderboard from one model per task.

  python run/glue_submission.py --glue_dir=glue_data \
      --model_dirs='output/*/model' --output_file=submission.zip

MNLI's model also predicts AX; WNLI gets the majority class, as in the paper.
"""

import dataclasses

from bert_tf.flags import options
from bert_tf.flags.groups import PredictionConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueSubmissionConfig(PredictionConfig):
    """Flags of run/glue_submission.py."""

    model_dirs: str = options.model(
        "Fine-tuned models, one for each task: comma-separated "
        "globs of directories. Each one's task is read from its files.",
        options.REQUIRED,
        reads="models",
    )
    glue_dir: str = options.data(
        "Directory with GLUE's folders: CoLA, SST-2, MNLI, AX, ...",
        options.REQUIRED,
        reads="folder",
    )
    output_file: str = options.output(
        "Zip file to write, for the leaderboard.",
        "submission.zip",
        endings=".zip",
    )
    allow_missing_tasks: bool = options.output(
        "Omit tasks without a model or a folder; the leaderboard does not "
        "accept such a file.",
        False,
    )


def main(config: GlueSubmissionConfig) -> None:
    from bert_tf.tasks.classification import glue_tasks

    glue_tasks.require_folders(config.glue_dir)
    from bert_tf.inference import glue_submission

    glue_submission.run(config)
