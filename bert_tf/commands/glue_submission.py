r"""Writes the zip file for GLUE's leaderboard from one model a task.

  python run/glue_submission.py --glue_dir=glue_data \
      --model_dirs='output/*/model' --output_file=submission.zip

The model of MNLI also predicts AX, and WNLI gets the majority class, as in the
paper.
"""

from bert_tf.flags.predict import GlueSubmissionConfig


def main(config: GlueSubmissionConfig) -> None:
    from bert_tf.inference import glue_submission

    glue_submission.run(config)
