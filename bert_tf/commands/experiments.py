"""Repeats the paper's experiments and reports them beside the paper's numbers.

  python run/experiments.py --experiments=table5,figure5 --scale=small \
    --corpus='corpus/*.txt' --data_dir=tasks --output_dir=experiments

--list prints the experiments and the tasks found in --data_dir, --dry_run the
commands of each cell. The same command resumes after any interruption, and
shares the cells with other machines that run it on the same folder.
OUTPUT_DIR/report.md is rewritten after each cell.
"""

from bert_tf.flags.experiments import ExperimentsConfig


def main(config: ExperimentsConfig) -> None:
    from bert_tf.experiments import run

    run.run(config)
