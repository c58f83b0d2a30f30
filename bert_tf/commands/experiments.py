r"""Repeats the paper's experiments and compares them with the paper's numbers.

  python run/experiments.py --experiments=table5,figure5 --scale=small \
      --corpus='corpus/*.txt' --data_dir=tasks --output_dir=experiments

--list prints the experiments and the tasks found in --data_dir. --dry_run
prints the commands of each cell. Rerun the same command to resume. If several
machines run it on one shared folder, they divide the cells among themselves.
OUTPUT_DIR/report.md is rewritten after each cell.
"""

import dataclasses

from bert_tf.experiments import EXPERIMENTS
from bert_tf.flags import options
from bert_tf.flags.groups import ModelSourceConfig

SCALES = ("smoke", "small", "paper")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentsConfig(ModelSourceConfig):
    """Flags of run/experiments.py."""

    experiments: str | None = options.training(
        f"Experiments, separated by commas: {', '.join(EXPERIMENTS)}. table1 "
        "to table4 start from --pretrained_model_dir."
    )
    scale: str = options.training(
        "Size of models, data and schedules: smoke takes minutes, small hours "
        "on two cores, paper is the paper's recipe.",
        "small",
        choices=SCALES,
    )
    corpus: str | None = options.data(
        "Text to pretrain on (also .gz), one paragraph or sentence a line, a "
        "blank line between documents: comma-separated globs. 2% of the "
        "documents are held out for perplexities.",
        affects="place",
        reads="files",
    )
    data_dir: str | None = options.data_folder(
        "Directory with one folder for each task: its official files, or any "
        "files and a task.json."
    )
    output_dir: str | None = options.target(
        "Directory for models, cells and the report."
    )
    tasks: str | None = options.data(
        "Tasks, separated by commas, each a folder of --data_dir (default: "
        "those of the scale)."
    )
    num_seeds: int | None = options.training(
        "Fine-tuning runs for each cell (default: the scale's).", at_least=1
    )
    pretrained_model_dir: str | None = options.start_model(
        "Pretrained model for table1 to table4, for a second column of table7 "
        "and, without --corpus, for stability."
    )
    dry_run: bool = options.reporting(
        "Print the cells to run and their commands, without running or writing "
        "anything.",
        False,
    )
    list: bool = options.reporting(
        "Print the experiments, the tasks, the files that each needs and "
        "those that were found.",
        False,
    )
    max_minutes: float | None = options.reporting(
        "Start no further step after this many minutes (default: run all "
        "cells)."
    )

    def check(self) -> None:
        super().check()
        if self.list:
            return
        options.require(
            self.experiments and self.output_dir,
            "--experiments and --output_dir are required; --list prints the "
            "experiments.",
        )
        # The cells' scripts would read these characters as a list or a glob.
        options.require(
            not set(self.output_dir) & set(",*?["),
            "--output_dir must have no comma, *, ? or [ in its name. Received: "
            f"{self.output_dir!r}.",
        )
        unknown = [x for x in self.names if x not in EXPERIMENTS]
        options.require(
            not unknown,
            f"--experiments must be among {', '.join(EXPERIMENTS)}. Received: "
            f"{', '.join(map(repr, unknown))}.",
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names in --experiments."""
        return options.values(self, "experiments")

    @property
    def task_names(self) -> tuple[str, ...]:
        """The names in --tasks."""
        return tuple(x.lower() for x in options.values(self, "tasks"))


def main(config: ExperimentsConfig) -> None:
    from bert_tf.experiments import run

    run.run(config)
