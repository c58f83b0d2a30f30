"""Plans jobs: what several cells need is made once, as its id is its content.

vocabulary -> records -> pretraining -> cells
"""

import dataclasses
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.config import BertConfig
from bert_tf.experiments import corpus as corpora
from bert_tf.experiments import costs
from bert_tf.experiments import jobs
from bert_tf.experiments import starts
from bert_tf.experiments import task_data
from bert_tf.experiments import task_folders as kinds
from bert_tf.experiments.corpus import Corpus
from bert_tf.experiments.jobs import HERE
from bert_tf.experiments.jobs import OUT
from bert_tf.experiments.jobs import Command
from bert_tf.experiments.jobs import Job
from bert_tf.experiments.jobs import Score
from bert_tf.experiments.scales import Scale
from bert_tf.experiments.starts import Start
from bert_tf.experiments.starts import Variant
from bert_tf.experiments.task_data import TaskData
from bert_tf.io import files

_FIRST_SEED = 12345
_RECORDS = "records.tfrecord"
PERPLEXITY = "masked_lm_perplexity"
# Kinds whose metrics are already in percent.
_PERCENT = (kinds.SQUAD, kinds.SQUAD2)


class Plan:
    """The jobs of all experiments, each once.

    Args:
      scale: The scale.
      output_dir: The folder of the experiments, for files that jobs read.
      corpus: The text; None if no experiment pretrains.
      num_seeds: Fine-tuning runs for each cell.
    """

    def __init__(
        self,
        scale: Scale,
        output_dir: str,
        corpus: Corpus | None,
        num_seeds: int | None = None,
    ) -> None:
        self.scale = scale
        self.corpus = corpus
        self.num_seeds = num_seeds or scale.num_seeds
        self.has_own_seeds = num_seeds is not None
        # In an order in which they can be done.
        self.jobs: dict[str, Job] = {}
        # Further placeholders in commands, and the paths they stand for.
        self.places: dict[str, str] = {}
        self._output_dir = output_dir

    @property
    def seeds(self) -> range:
        """The seeds of fine-tuning."""
        return range(_FIRST_SEED, _FIRST_SEED + self.num_seeds)

    @property
    def cells(self) -> list[Job]:
        """The cells, in order."""
        return [x for x in self.jobs.values() if x.kind == jobs.CELL]

    def add(
        self,
        kind: str,
        name: str,
        title: str,
        commands: Sequence[Command],
        needs: Sequence[str],
        produces: str,
        work: float,
        score: Score | None = None,
    ) -> Job:
        """Adds a job, or returns the one with the same content."""
        job_id = jobs.content_id(name, commands, needs, score)
        if job_id not in self.jobs:
            self.jobs[job_id] = Job(
                job_id,
                kind,
                title,
                tuple(commands),
                tuple(dict.fromkeys(needs)),
                produces,
                work,
                score,
            )
        return self.jobs[job_id]

    def vocabulary(self) -> Job:
        """Returns the job that learns the vocabulary."""
        flags = {
            "input_file": self.corpus.path(corpora.TRAIN_FILE),
            "output_file": f"{HERE}/vocab.txt",
            **self.scale.vocabulary,
        }
        return self.add(
            "vocabulary",
            "vocabulary",
            "vocabulary",
            [Command("run/learn_vocabulary.py", flags)],
            [],
            f"{HERE}/vocab.txt",
            costs.text_work(self.corpus.sizes[corpora.TRAIN_FILE]),
        )

    def records(
        self, variant: Variant, flags: Mapping[str, Any], source: str
    ) -> Job:
        """Returns the job that makes records of a file of the corpus."""
        if source == corpora.HELD_OUT_FILE:
            # Models with other rates are compared on the same masks.
            variant = dataclasses.replace(variant, rates=None)
        vocabulary = self.vocabulary()
        flags = {
            "input_file": self.corpus.path(source),
            "output_file": f"{HERE}/{_RECORDS}",
            "vocab_file": f"{vocabulary.here}/vocab.txt",
            **flags,
            **starts.masking_flags(variant, flags),
        }
        if source == corpora.HELD_OUT_FILE:
            flags["dupe_factor"] = 1
            flags.pop("num_shards", None)
        produces = flags["output_file"]
        if count := flags.get("num_shards"):
            stem = produces.removesuffix(".tfrecord")
            produces = f"{stem}-00000-of-{count:05d}.tfrecord"
        work = self.corpus.sizes[source] * flags.get("dupe_factor", 10)
        return self.add(
            "records",
            f"records-{source.removesuffix('.txt')}-{starts.data_name(variant)}",
            f"records for {starts.data_name(variant)}",
            [Command("run/create_pretraining_data.py", flags)],
            [vocabulary.id],
            produces,
            costs.text_work(work),
        )

    def pretraining(self, variant: Variant) -> Job:
        """Returns the job that pretrains a model, in one phase or several."""
        config = self._config(variant)
        vocabulary = self.vocabulary()
        commands, needs = [], [vocabulary.id]
        for phase in self.scale.phases:
            train, held_out = (
                self.records(variant, phase["records"], source)
                for source in (corpora.TRAIN_FILE, corpora.HELD_OUT_FILE)
            )
            needs += [train.id, held_out.id]
            flags = {
                **phase["pretraining"],
                "bert_config_file": self._config_file(config),
                "input_file": f"{train.here}/*.tfrecord",
                "eval_input_file": f"{held_out.here}/*.tfrecord",
                "vocab_file": f"{vocabulary.here}/vocab.txt",
                "output_dir": HERE,
                "do_train": True,
                "do_eval": True,
                "max_seq_length": phase["records"]["max_seq_length"],
                "max_predictions_per_seq": starts.num_predictions(
                    variant, phase["records"]
                ),
            }
            if not variant.next_sentence:
                flags["use_next_sentence"] = False
            commands.append(Command("run/pretrain.py", flags))
        return self.add(
            "pretraining",
            f"pretraining-{variant.name}",
            f"pretraining of {variant.name}",
            commands,
            needs,
            f"{HERE}/eval_results.txt",
            costs.pretraining(
                config, [jobs.with_flag_file(x.flags) for x in commands]
            ),
        )

    def start(self, variant: Variant) -> Start:
        """Returns the model at the end of pretraining."""
        job = self.pretraining(variant)
        return Start(
            variant.name,
            {"pretrained_model_dir": f"{job.here}/model"},
            (job.id,),
            self._config(variant),
            variant.next_sentence,
        )

    def start_at(self, variant: Variant, step: int) -> Start:
        """Returns the model at a step of pretraining."""
        job, config = self.pretraining(variant), self._config(variant)
        if step == max(self.scale.curve_steps):
            return self.start(variant)
        flags = {
            "init_checkpoint": f"{job.here}/model.ckpt-{step}",
            "bert_config_file": self._config_file(config),
            "vocab_file": f"{self.vocabulary().here}/vocab.txt",
        }
        return Start(
            f"{variant.name}-{step}",
            flags,
            (job.id,),
            config,
            variant.next_sentence,
        )

    def perplexity(self, variant: Variant) -> str:
        """Returns the id of the cell with a model's perplexity."""
        job = self.pretraining(variant)
        score = Score(
            f"{job.here}/eval_results.txt", "", PERPLEXITY, 1.0, _FIRST_SEED
        )
        name, title = f"perplexity-{variant.name}", "perplexity"
        produces = score.results
        cell = self.add(
            jobs.CELL, name, title, [], [job.id], produces, 0.0, score
        )
        return cell.id

    def place(self, name: str, path: str) -> str:
        """Returns a placeholder for a path outside the folder.

        It has a hash of the contents, so that ids do not depend on the path.
        """
        holder = f"{{{name}-{starts.contents_hash(path)}}}"
        self.places[holder] = os.path.abspath(path)
        if "://" in path or not os.path.exists(path):
            self.places[holder] = path
        return holder

    def stored_model(self, path: str) -> Start:
        """Returns a model that exists, as a start."""
        return Start(
            "model",
            {"pretrained_model_dir": self.place("model", path)},
            (),
            starts.stored_config(path) or self.scale.config(self.scale.base),
            is_stored=True,
        )

    def untrained(self, path: str) -> Start | None:
        """Returns a model like another one with new weights, as a start.

        None if the folder has no configuration or no vocab.txt.
        """
        stored = starts.stored_config(path)
        vocabulary = "vocab.txt"
        if not stored or not os.path.isfile(os.path.join(path, vocabulary)):
            return None
        # Hugging Face's has further keys.
        names = [field.name for field in dataclasses.fields(BertConfig)]
        config = {name: stored[name] for name in names if name in stored}
        flags = {
            "bert_config_file": self._config_file(config),
            "vocab_file": f"{self.place('model', path)}/{vocabulary}",
        }
        return Start("new", flags, (), config, is_stored=True)

    def finetuning(
        self,
        task: TaskData,
        start: Start,
        *,
        num_seeds: int | None = None,
        **own: Any,
    ) -> tuple[str, ...]:
        """Returns the ids of the cells of a task, one for each seed.

        Args:
          task: The task.
          start: The model to start from.
          num_seeds: The number of seeds; by default the plan's.
          **own: Flags in place of the scale's.
        """
        count = num_seeds or self.num_seeds
        seeds = range(_FIRST_SEED, _FIRST_SEED + count)
        return tuple(
            self._finetuning(task, start, seed, own).id for seed in seeds
        )

    def other_metric(
        self, cells: Sequence[str], metric: str, split: str | None = None
    ) -> tuple[str, ...]:
        """Returns the ids of cells with another metric of the same runs.

        Args:
          cells: The ids of the runs' cells.
          metric: The metric.
          split: The beginning of another split's name; by default the same.
        """
        found = []
        for cell_id in cells:
            cell = self.jobs[cell_id]
            results = cell.score.results.replace(HERE, cell.here)
            score = dataclasses.replace(
                cell.score,
                metric=metric,
                split=split or cell.score.split,
                results=results,
                majority=None,
            )
            name = f"{cell_id}-{split or metric}"
            found.append(
                self.add(
                    jobs.CELL, name, name, [], [cell_id], results, 0.0, score
                ).id
            )
        return tuple(found)

    def ensemble(self, task: TaskData, cells: Sequence[str]) -> tuple[str, ...]:
        """Returns the id of the cell of a SQuAD ensemble."""
        nbest = [
            f"{jobs.folder(jobs.CELL, x)}/nbest_predictions.json" for x in cells
        ]
        flags = {x: y for x, y in task.flags.items() if x != "train_file"}
        flags |= {
            "ensemble_nbest_files": ",".join(nbest),
            "do_predict": True,
            "output_dir": HERE,
        }
        score = Score(
            f"{HERE}/eval_results.json", "dev", task.metric, 1.0, _FIRST_SEED
        )
        name = f"{task.name}-ensemble_of_{len(cells)}"
        command = Command("run/finetune_squad.py", flags)
        cell = self.add(
            jobs.CELL, name, name, [command], cells, score.results, 0.0, score
        )
        return (cell.id,)

    def _finetuning(
        self, task: TaskData, start: Start, seed: int, own: Mapping[str, Any]
    ) -> Job:
        flags = dict(self.scale.flags(task.kind))
        if start.is_stored:
            flags |= self.scale.stored_model
        if own.get("approach") == "feature_based":
            flags |= self.scale.flags("feature_based")
        flags |= {**start.flags, **task.flags, **own}
        flags |= {"do_train": True, "do_eval": True, "seed": seed}
        flags["output_dir"] = HERE
        if not start.has_pooler and _reads_pooler(task.kind, flags):
            flags["new_pooler"] = True
        how = "-".join(
            # Of a placeholder, only what it stands for.
            x.strip("{}").partition("-")[0] if x in self.places else x
            for x in own.values()
            if isinstance(x, str)
        )
        name = "-".join(filter(None, (task.name, start.name, how)))
        values = jobs.with_flag_file(flags)
        tokens = min(task.mean_tokens, int(values["max_seq_length"]))
        if task.kind in _PERCENT:
            tokens = task.mean_tokens * 1.5  # Windows overlap.
        work = costs.finetuning(
            start.config, values, tokens * task.num_train, tokens * task.num_dev
        )
        factor = 1.0 if task.kind in _PERCENT else 100.0
        score = Score(
            f"{HERE}/eval_results.json",
            "dev",
            task.metric,
            factor,
            seed,
            # The correlation of one label for all rows is 0.
            {"accuracy": task.majority, "matthews_correlation": 0.0}.get(
                task.metric
            ),
        )
        return self.add(
            jobs.CELL,
            f"{name}-seed{seed}",
            f"{name}, seed {seed}",
            [Command(task_data.SCRIPTS[task.kind], flags)],
            start.needs,
            score.results,
            work,
            score,
        )

    def mean(
        self, name: str, groups: Sequence[Sequence[str]]
    ) -> tuple[str, ...]:
        """Returns the ids of cells that average others, seed by seed."""
        found = []
        for seed, parts in zip(
            self.seeds, zip(*groups, strict=True), strict=True
        ):
            score = Score("", "", "average", 1.0, seed, mean_of=parts)
            full = f"{name}-seed{seed}"
            cell = self.add(jobs.CELL, full, full, [], parts, "", 0.0, score)
            found.append(cell.id)
        return tuple(found)

    def _config(self, variant: Variant) -> dict[str, Any]:
        config = self.scale.config(variant.size or self.scale.base)
        if variant.left_to_right:
            config["left_to_right"] = True
        return config

    def _config_file(self, config: Mapping[str, Any]) -> str:
        """Returns a bert_config.json, which is written if it does not exist."""
        name = f"data/bert_config-{jobs.digest(config)}.json"
        path = os.path.join(self._output_dir, name)
        if not files.is_file(path):
            task_data.write_json(path, dict(config))
        return f"{OUT}/{name}"


def _reads_pooler(kind: str, flags: Mapping[str, Any]) -> bool:
    return (
        kind in (kinds.CLASSIFICATION, kinds.REGRESSION, kinds.MULTIPLE_CHOICE)
        and flags.get("head", "linear") == "linear"
    )
