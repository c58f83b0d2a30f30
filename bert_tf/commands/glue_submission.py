r"""Makes the zip file for GLUE's leaderboard, from one fine-tuned model a task.

  python run/glue_submission.py --glue_dir=glue_data \
      --model_dirs='output/*/model' --output_file=submission.zip

AX is answered by the model of MNLI, and WNLI with the majority class, as in the
paper.
"""

from bert_tf.flags.predict import GlueSubmissionConfig


def main(config: GlueSubmissionConfig) -> None:
    # So --help answers at once.
    from bert_tf.inference import glue_submission

    glue_submission.run(config)
