r"""Makes the zip file for GLUE's leaderboard, from one fine-tuned model a task.

  python run/glue_submission.py --glue_dir=glue_data \
      --model_dirs='output/*/model' --output_file=submission.zip

AX is answered by the model of MNLI, and WNLI with the majority class, as in the
paper.
"""

from bert_tf import cli
from bert_tf.run_config.predict import GlueSubmissionConfig


def main(config: GlueSubmissionConfig) -> None:
    from bert_tf.serving import glue_submission  # So --help answers at once.

    glue_submission.run(config)


if __name__ == "__main__":
    cli.run(main, GlueSubmissionConfig)
