"""Steps and cells: commands of the project's scripts, each made once.

vocabulary -> records -> pretraining -> cells. The id of each is a name with a
hash of all that its result depends on: what several tables need is made once,
and a later command finds what an earlier one has finished.
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from bert_tf.experiments import data
from bert_tf.experiments.data import HELD_OUT_FILE
from bert_tf.experiments.data import OUT
from bert_tf.experiments.data import TRAIN_FILE
from bert_tf.experiments.data import Task
from bert_tf.flags import flag_files
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import text_files

# Stands in flags for the folder of a step, as `OUT` for that of all.
HERE = "{here}"
CELL = "runs"
PERPLEXITY, AVERAGE = "masked_lm_perplexity", "average"
_FIRST_SEED = 12345

# A script, as "run/pretrain.py", and its flags.
Command = tuple[str, Mapping[str, Any]]
# A way to pretrain, from tables.json, with its name and perhaps a size.
Variant = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Score:
    """How to read a cell's score from the results of its command.

    Attributes:
      metric: The metric's name.
      path: The file with the results; "" for the average of the cells that the
        step needs.
      split: The beginning of the split's name in a .json file.
      factor: 100 for shares, which the paper gives in percent.
      seed: The seed of the run.
      majority: The score of the most frequent label, or None.
    """

    metric: str
    path: str = f"{HERE}/eval_results.json"
    split: str = ""
    factor: float = 1.0
    seed: int = _FIRST_SEED
    majority: float | None = None


@dataclasses.dataclass(frozen=True)
class Step:
    """Something that is made once: a vocabulary, records, a model or a cell.

    Attributes:
      id: A name with a hash of all that the result depends on.
      kind: The folder of its output in --output_dir; `CELL` for cells.
      commands: The commands, in order; none where `score` reads what another
        step has written.
      needs: The ids of the steps to do before.
      score: Set for cells.
    """

    id: str
    kind: str
    commands: tuple[Command, ...]
    needs: tuple[str, ...]
    score: Score | None = None

    @property
    def here(self) -> str:
        """The folder of its output, with `OUT`."""
        return f"{OUT}/{self.kind}/{self.id}"


class Start(NamedTuple):
    """A model that fine-tuning begins with, and the steps that make it."""

    name: str
    flags: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    has_pooler: bool = True


class Plan:
    """The steps of all experiments, each once, needed ones first.

    Args:
      scale: The contents of a file in recipes/experiments/scales/.
      folder: The folder in which files that commands read are written.
      corpus: The name of the corpus in it; None if nothing is pretrained.
    """

    def __init__(
        self, scale: Mapping[str, Any], folder: str, corpus: str | None
    ) -> None:
        self.scale = scale
        self.corpus = corpus
        self.steps: dict[str, Step] = {}
        # Placeholders for paths outside the folder, and the paths.
        self.places: dict[str, str] = {}
        self._folder = folder

    @property
    def cells(self) -> list[str]:
        """The ids of the cells, in order."""
        return [x.id for x in self.steps.values() if x.kind == CELL]

    # === What cells need ===

    def _vocabulary(self) -> Step:
        source = f"{OUT}/data/{self.corpus}/{TRAIN_FILE}"
        flags = {"input_file": source, "output_file": f"{HERE}/vocab.txt"}
        flags |= self.scale["vocabulary"]
        command = ("run/learn_vocabulary.py", flags)
        return self._add("vocabulary", "vocabulary", [command])

    def _records(
        self, variant: Variant, flags: Mapping[str, Any], source: str
    ) -> Step:
        """Returns the step that makes records of a file of the corpus."""
        own, name = variant.get("records", {}), variant["data"]
        if own.get("left_to_right"):
            # All tokens are predicted.
            own = {**own, "max_predictions_per_seq": flags["max_seq_length"]}
        if source == HELD_OUT_FILE:
            flags = {x: y for x, y in flags.items() if x != "num_shards"}
            flags["dupe_factor"] = 1
            # Models with other rates are compared on the same masks.
            own = {x: y for x, y in own.items() if not x.endswith("_rate")}
            name = variant.get("held_out", name)
        vocabulary = self._vocabulary()
        flags = {
            "input_file": f"{OUT}/data/{self.corpus}/{source}",
            "output_file": f"{HERE}/records.tfrecord",
            "vocab_file": f"{vocabulary.here}/vocab.txt",
            **flags,
            **own,
        }
        name = f"records-{source.removesuffix('.txt')}-{name}"
        command = ("run/create_pretraining_data.py", flags)
        return self._add("records", name, [command], [vocabulary.id])

    def _pretraining(self, variant: Variant) -> Step:
        """Returns the step that pretrains a model, in one phase or several."""
        vocabulary = self._vocabulary()
        commands, needs = [], [vocabulary.id]
        for phase in self.scale["phases"]:
            train = self._records(variant, phase["records"], TRAIN_FILE)
            held_out = self._records(variant, phase["records"], HELD_OUT_FILE)
            needs += [train.id, held_out.id]
            ((_, records),) = train.commands
            same = ("vocab_file", "max_seq_length", "max_predictions_per_seq")
            flags = {
                **phase["pretraining"],
                **{x: records[x] for x in same},
                "bert_config_file": self._config_file(variant),
                "input_file": f"{train.here}/*.tfrecord",
                "eval_input_file": f"{held_out.here}/*.tfrecord",
                "output_dir": HERE,
                "do_train": True,
                "do_eval": True,
                **variant.get("pretraining", {}),
            }
            commands.append(("run/pretrain.py", flags))
        name = f"pretraining-{variant['name']}"
        return self._add("pretraining", name, commands, needs)

    def start(self, variant: Variant, step: int | None = None) -> Start:
        """Returns the model at a step of pretraining, by default its end."""
        made, name = self._pretraining(variant), variant["name"]
        flags = {"pretrained_model_dir": f"{made.here}/model"}
        if step not in (None, max(self.scale["curve_steps"])):
            name += f"-{step}"
            flags = {
                "init_checkpoint": f"{made.here}/model.ckpt-{step}",
                "bert_config_file": self._config_file(variant),
                "vocab_file": f"{self._vocabulary().here}/vocab.txt",
            }
        has_pooler = variant.get("pretraining", {}).get("use_next_sentence")
        return Start(name, flags, (made.id,), has_pooler is not False)

    def stored_model(self, path: str) -> Start:
        """Returns a model that exists, as a start."""
        flags = {"pretrained_model_dir": self.place("model", path)}
        return Start("model", flags)

    def place(self, name: str, path: str) -> str:
        """Returns a placeholder for a path outside the folder.

        It has a hash of the contents, so that ids do not depend on the path.
        """
        root = pathlib.Path(path)
        # A model has no pipes, and no use for a broken link.
        found = [x for x in (root, *root.rglob("*")) if x.is_file()]
        sums = {str(x.relative_to(root)): files.sha256(str(x)) for x in found}
        # The path of a file is ".", of a folder's files their names in it.
        holder = f"{{{name}-{data.digest(sums.get('.', sums or path))}}}"
        is_local = os.path.exists(path)
        self.places[holder] = os.path.abspath(path) if is_local else path
        return holder

    def _config_file(self, variant: Variant) -> str:
        """Writes the configuration of a model, and returns its path."""
        own = self.scale["sizes"][variant.get("size", self.scale["base"])]
        if isinstance(own, str):
            folder = os.path.join(paths.RECIPES, "configs", own)
            own = text_files.read_json(os.path.join(folder, "bert_config.json"))
        vocab_size = self.scale["vocabulary"]["vocab_size"]
        config = {**self.scale["model"], **own, "vocab_size": vocab_size}
        config |= variant.get("config", {})
        name = f"data/bert_config-{data.digest(config)}.json"
        path = os.path.join(self._folder, name)
        if not os.path.exists(path):
            data.write_json(path, config)
        return f"{OUT}/{name}"

    # === Cells ===

    def perplexity(self, variant: Variant) -> str:
        """Returns the id of the cell with a model's perplexity."""
        made, name = self._pretraining(variant), f"perplexity-{variant['name']}"
        score = Score(PERPLEXITY, f"{made.here}/eval_results.txt")
        return self._add(CELL, name, [], [made.id], score).id

    def finetuning(
        self,
        task: Task,
        start: Start,
        own: Mapping[str, Any],
        num_seeds: int,
    ) -> list[str]:
        """Returns the ids of the cells of a task, one for each seed.

        `own` are flags instead of the scale's.
        """
        kind, scale = data.KINDS[task.kind], self.scale["finetuning"]
        flags, head = dict(scale[task.kind]), own.get("head", "linear")
        if not start.needs:  # A model from elsewhere.
            flags |= self.scale.get("stored_model", {})
        for way in (own.get("approach"), f"{head} {task.kind}"):
            flags |= scale.get(way, {})
        if kind["has_pooler"] and head == "linear" and not start.has_pooler:
            flags["new_pooler"] = True
        flags |= {**start.flags, **task.flags, **own}
        flags |= {"do_train": True, "do_eval": True, "output_dir": HERE}
        # Of a placeholder, only what it stands for.
        how = [
            x.strip("{}").partition("-")[0] if x in self.places else x
            for x in own.values()
            if isinstance(x, str)
        ]
        # The correlation of one label for all rows is 0.
        majority = {"matthews_correlation": 0.0, "accuracy": task.majority}
        majority, factor = majority.get(task.metric), kind["factor"]
        found = []
        for seed in range(_FIRST_SEED, _FIRST_SEED + num_seeds):
            shown = {"factor": factor, "seed": seed, "majority": majority}
            score = Score(task.metric, split="dev", **shown)
            name = "-".join([task.name, start.name, *how, f"seed{seed}"])
            command = (kind["script"], flags | {"seed": seed})
            step = self._add(CELL, name, [command], start.needs, score)
            found.append(step.id)
        return found

    def other_metric(
        self, cells: Sequence[str], metric: str, split: str | None = None
    ) -> list[str]:
        """Returns the ids of cells with another metric of the same runs."""
        found = []
        for cell in (self.steps[x] for x in cells):
            own = {"metric": metric, "split": split or cell.score.split}
            own["path"] = cell.score.path.replace(HERE, cell.here)
            score = dataclasses.replace(cell.score, majority=None, **own)
            name = f"{cell.id}-{split or metric}"
            found.append(self._add(CELL, name, [], [cell.id], score).id)
        return found

    def ensemble(self, task: Task, cells: Sequence[str]) -> str:
        """Returns the id of the cell of a SQuAD ensemble."""
        nbest = [f"{self.steps[x].here}/nbest_predictions.json" for x in cells]
        flags = {x: y for x, y in task.flags.items() if x != "train_file"}
        flags["ensemble_nbest_files"] = ",".join(nbest)
        flags |= {"do_predict": True, "output_dir": HERE}
        name = f"{task.name}-ensemble_of_{len(cells)}"
        command = ("run/finetune_squad.py", flags)
        score = Score(task.metric, split="dev")
        return self._add(CELL, name, [command], cells, score).id

    def average(self, groups: Sequence[Sequence[str]]) -> list[str]:
        """Returns the ids of cells that average others, seed by seed."""
        found = []
        for parts in zip(*groups, strict=True):
            score = Score(AVERAGE, "", seed=self.steps[parts[0]].score.seed)
            name = f"average-model-seed{score.seed}"
            found.append(self._add(CELL, name, [], parts, score).id)
        return found

    def _add(
        self,
        kind: str,
        name: str,
        commands: Sequence[Command],
        needs: Sequence[str] = (),
        score: Score | None = None,
    ) -> Step:
        """Adds a step, or returns the one with the same content."""
        content = [
            [[script, _with_flag_file(flags)] for script, flags in commands],
            list(needs),
            score
            and [score.metric, score.split, [] if score.path else list(needs)],
        ]
        step_id = f"{name}-{data.digest(content)}"
        needs = tuple(dict.fromkeys(needs))
        step = Step(step_id, kind, tuple(commands), needs, score)
        return self.steps.setdefault(step_id, step)


def _with_flag_file(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns flags, in front of them those of the file that they name."""
    words = flag_files.expand([f"--flagfile={flags.get('flagfile', '')}"])
    parts = [word.removeprefix("--").partition("=") for word in words]
    found = {name: value if sign else True for name, sign, value in parts}
    return {**found, **flags}
