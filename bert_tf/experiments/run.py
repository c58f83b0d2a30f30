"""Plans the experiments of the flags, runs their cells and reports them."""

import dataclasses
import os
import sys
import time
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.errors import UserError
from bert_tf.experiments import corpus as corpora
from bert_tf.experiments import needs
from bert_tf.experiments import report
from bert_tf.experiments import results
from bert_tf.experiments import runner
from bert_tf.experiments import scales
from bert_tf.experiments import table as tables_lib
from bert_tf.experiments import tables
from bert_tf.experiments import task_data
from bert_tf.experiments import task_folders
from bert_tf.experiments.corpus import Corpus
from bert_tf.experiments.plan import Plan
from bert_tf.experiments.runner import Runner
from bert_tf.experiments.scales import Scale
from bert_tf.experiments.table import Table
from bert_tf.experiments.task_folders import TaskFolder
from bert_tf.flags.experiments import EXPERIMENTS
from bert_tf.flags.experiments import STABILITY
from bert_tf.flags.experiments import ExperimentsConfig
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.io import text_files

# In --output_dir: what all cells there have in common.
_IDENTITY_FILE = "experiments.json"
_TABLES_FOLDER = "tables"


@dataclasses.dataclass(frozen=True)
class Experiments:
    """The plan of the flags and the tables that it fills."""

    plan: Plan
    tables: Sequence[Table]


def run(config: ExperimentsConfig) -> None:
    """Runs the experiments, or prints what the flags ask for.

    Raises:
      UserError: If something is missing, --output_dir is of another corpus or
        scale, or cells have failed.
    """
    scale = scales.read(config.scale)
    found = task_folders.find_tasks(config.data_dir)
    if config.list:
        sys.stdout.write(needs.describe(scale, found, config.data_dir))
        return
    # One process at a time, as several machines may begin at once.
    data = os.path.join(config.output_dir, "data")
    with locks.exclusive(data, "writes"):
        experiments = prepare(config, scale, found)
        if not config.dry_run:
            _write_tables(experiments.tables, config.output_dir)
    if config.dry_run:
        sys.stdout.write(describe_plan(experiments, config.output_dir))
        return
    if config.strict_code:
        _require_commit(experiments.plan, config.output_dir)
    _run_cells(config, experiments)


def prepare(
    config: ExperimentsConfig, scale: Scale, found: Mapping[str, TaskFolder]
) -> Experiments:
    """Returns the plan, and writes the files that its commands read."""
    chosen = needs.choose(config, scale, found)
    corpus = _prepare_corpus(config, scale)
    plan = Plan(scale, config.output_dir, corpus, config.num_seeds)
    built = [
        tables.build(name, _inputs(config, plan, name, tasks))
        for name, tasks in chosen.items()
    ]
    return Experiments(plan, built)


def _write_tables(tables: Sequence[Table], output_dir: str) -> None:
    """Writes the tables for the report, which other processes write, too."""
    for table in tables:
        name = os.path.join(_TABLES_FOLDER, f"{table.name}.json")
        path = os.path.join(output_dir, name)
        task_data.write_json(path, tables_lib.to_json(table))


def _inputs(
    config: ExperimentsConfig,
    plan: Plan,
    name: str,
    tasks: Sequence[TaskFolder],
) -> tables.Inputs:
    scale, output_dir = plan.scale, config.output_dir
    if name != STABILITY:
        return tables.Inputs(
            plan,
            [
                task_data.prepare(x, output_dir, *scale.max_rows(x.kind))
                for x in tasks
            ],
            config.pretrained_model_dir,
            triviaqa=_triviaqa(plan, config.data_dir),
        )
    small = [
        task_data.prepare(x, output_dir, num_rows, scale.max_rows(x.kind)[1])
        for num_rows in scale.stability["rows"]
        for x in tasks
    ]
    return tables.Inputs(
        plan, small, config.pretrained_model_dir, small_tasks=small
    )


def _triviaqa(plan: Plan, data_dir: str | None) -> dict[str, str]:
    """Returns the flags that name TriviaQA, if it is in --data_dir."""
    if not (paths := needs.find_triviaqa(data_dir)):
        return {}
    path, evidence = paths
    return {
        "triviaqa_file": plan.place("triviaqa", path),
        "triviaqa_evidence_dir": plan.place("evidence", evidence),
    }


def _prepare_corpus(config: ExperimentsConfig, scale: Scale) -> Corpus | None:
    """Returns the corpus, after a check that the folder is of no other one."""
    sums = {}
    if config.corpus:
        names = corpora.find_files(config.corpus)
        sums = {name: files.sha256(name) for name in names}
    earlier, identity = _check_identity(config, sums)
    corpus = None
    if sums:
        corpus = corpora.prepare(
            [*sums],
            [*sums.values()],
            config.output_dir,
            scale.corpus_megabytes,
            scale.held_out_megabytes,
        )
    # After the corpus was found to be usable.
    if identity != earlier:
        path = os.path.join(config.output_dir, _IDENTITY_FILE)
        task_data.write_json(path, identity)
    return corpus


def _check_identity(
    config: ExperimentsConfig, sums: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Refuses another scale or corpus in the folder of earlier experiments.

    Returns:
      The identity of the folder, and with the experiments of the flags.

    Raises:
      UserError: If one of them differs.
    """
    path = os.path.join(config.output_dir, _IDENTITY_FILE)
    earlier = text_files.read_json(path) if os.path.exists(path) else {}
    _refuse(config, "--scale", earlier.get("scale"), config.scale)
    before = earlier.get("corpus") or {}
    if before and sums and sorted(before.values()) != sorted(sums.values()):
        names = (", ".join(sorted(x)) for x in (before, sums))
        _refuse(config, "--corpus", *names, differ=True)
    return earlier, {"scale": config.scale, "corpus": before or dict(sums)}


def _refuse(
    config: ExperimentsConfig,
    flag: str,
    earlier: str | None,
    received: str,
    differ: bool = False,
) -> None:
    if earlier is None or (earlier == received and not differ):
        return
    contents = " with other contents" if earlier == received else ""
    raise UserError(
        f"--output_dir={config.output_dir} has experiments of {flag}="
        f"{earlier}. Received: {flag}={received}{contents}; give another "
        "--output_dir."
    )


def _require_commit(plan: Plan, output_dir: str) -> None:
    """Refuses finished jobs of other code, for --strict_code."""
    commit, others = results.current_commit(), {}
    for job in plan.jobs.values():
        if results.is_done(output_dir, job):
            made_by = results.read(output_dir, job)["commit"]
            if made_by != commit:
                others.setdefault(made_by, []).append(job.id)
    if others:
        made_by, ids = next(iter(others.items()))
        raise UserError(
            f"--strict_code wants all cells to be of one commit, and this is "
            f"{commit}. Received: {len(ids)} results of {made_by}, as "
            f"{ids[0]}; check that commit out, or give another --output_dir."
        )


def _run_cells(config: ExperimentsConfig, experiments: Experiments) -> None:
    plan = experiments.plan
    number, count = config.part
    cells = [x.id for x in plan.cells][number - 1 :: count]

    def write_report() -> None:
        try:
            report.write(read_tables(config.output_dir), config.output_dir)
        except OSError as error:
            logging.error("The report could not be written: %s.", error)

    begin = time.monotonic()
    cell_runner = Runner(
        config.output_dir, plan.jobs, cells, plan.places, write_report
    )
    left = cell_runner.run(config.max_minutes)
    write_report()
    failed = [x for x in left if x in cell_runner.failed]
    logging.info(
        "%d of %d cells are done, after %.1f minutes. Report: %s",
        len(cells) - len(left),
        len(cells),
        (time.monotonic() - begin) / 60,
        os.path.join(config.output_dir, "report.md"),
    )
    if failed:
        raise UserError(
            f"{len(failed)} of {len(cells)} cells have failed, as {failed[0]}; "
            f"see {os.path.join(config.output_dir, 'cells')}/*.failed.json. "
            "The same command tries them again."
        )
    if left:
        logging.info(
            "%d cells are left after --max_minutes=%g; the same command "
            "continues.",
            len(left),
            config.max_minutes,
        )


def read_tables(output_dir: str) -> list[Table]:
    """Returns the tables of all experiments that were planned in a folder."""
    found = []
    for name in EXPERIMENTS:
        path = os.path.join(output_dir, _TABLES_FOLDER, f"{name}.json")
        if os.path.exists(path):
            found.append(tables_lib.from_json(text_files.read_json(path)))
    return found


def describe_plan(experiments: Experiments, output_dir: str) -> str:
    """Returns the commands of all jobs, with estimated minutes and the sum."""
    plan = experiments.plan
    all_jobs = list(plan.jobs.values())
    clock = runner.Clock(output_dir, plan.jobs, [x.id for x in all_jobs])
    done = {x.id for x in all_jobs if results.is_done(output_dir, x)}
    cells = [x.id for x in plan.cells]
    to_do = runner.closure(plan.jobs, cells, done.__contains__)
    waiting = {x.id for x in to_do}
    lines, total, left = [], 0.0, 0.0
    for job in all_jobs:
        minutes = clock.correction * runner.estimate(job) / 60
        total += minutes
        state = "done" if job.id in done else "not needed again"
        if job.id in waiting:
            left += minutes
            state = f"about {minutes:,.1f} minutes"
        lines.append(f"# {job.id}: {state}")
        places = job.places(output_dir) | plan.places
        if not job.commands:
            lines.append(f"# reads what {', '.join(job.needs)} wrote")
        lines += [x.shell(places) for x in job.commands]
        lines.append("")
    lines.append(
        f"# {len(plan.cells)} cells and {len(all_jobs) - len(plan.cells)} "
        f"jobs that they need, about {total:,.0f} minutes, of which "
        f"{left:,.0f} are left."
    )
    return "\n".join(lines) + "\n"
