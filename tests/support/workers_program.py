"""The program of each worker in workers_test.py; logs a line of JSON."""

import dataclasses
import json

import numpy as np
from absl import logging

from bert_tf.config import REQUIRED
from bert_tf.config import option
from bert_tf.data.input_pipeline import PretrainingInput
from bert_tf.distribute import batches as batches_lib
from bert_tf.distribute import devices as device_setup
from bert_tf.distribute.batches import StepPlan
from bert_tf.errors import UserError
from bert_tf.flags import cli
from bert_tf.flags.groups import DeviceConfig

NUM_RECORDS = 21
BATCH_SIZE = 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramConfig(DeviceConfig):
    """Flags of this program."""

    input_file: str = option("Records.", REQUIRED)


def main(config: ProgramConfig) -> None:
    devices = device_setup.prepare(config)
    with devices.together():
        results = _coordinate(devices.coordinator)
        results["rows"] = _read(config, devices)
        logging.info("RESULTS %s", json.dumps(results))
        if not devices.coordinator.is_chief:
            raise UserError("No space is left.")


def _coordinate(coordinator):
    """Returns the results of the collective methods."""
    try:
        coordinator.agree({"seed": 7, "index": coordinator.index}, "flags")
        difference = None
    except UserError as error:
        difference = str(error)
    coordinator.agree({"seed": 7, "names": ("a", "b")}, "flags")
    coordinator.barrier("the middle")
    return {
        "difference": difference,
        "from_chief": coordinator.from_chief({"token": coordinator.index}),
        "next_calls": [
            coordinator.next_call(3 + coordinator.index, stop=stop)
            for stop in (False, coordinator.index == 1)
        ],
    }


def _read(config, devices):
    """Returns the indices of the examples of an epoch, -1 for blank rows."""
    source = PretrainingInput(
        [config.input_file],
        batch_size=BATCH_SIZE,
        max_seq_length=8,
        max_predictions_per_seq=3,
        seed=5,
    )
    strategy = devices.strategy
    plan = StepPlan(BATCH_SIZE, strategy.num_replicas_in_sync)
    iterator = batches_lib.distribute_batches(
        strategy, lambda first, count: source.dataset(0, (first, count)), plan
    )
    rows = []
    for _ in range(NUM_RECORDS // BATCH_SIZE):
        batch = {
            name: strategy.experimental_local_results(value)[0]
            for name, value in next(iterator).items()
        }
        is_row = batches_lib.example_weights(batch) > 0
        rows += np.where(is_row, batch["example_index"], -1).tolist()
    return rows


if __name__ == "__main__":
    cli.run(main)
