"""Starts two worker processes: startup, agreement, input, and failure."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from tests.support import record_files
from tests.support import worker_processes
from tests.support import workers_program


@pytest.mark.slow
class WorkersTest(tf.test.TestCase):
    def test_two_workers(self):
        # One start for all checks, as each takes ten seconds.
        path = os.path.join(self.create_tempdir().full_path, "a.tfrecord")
        record_files.write(path, range(workers_program.NUM_RECORDS))
        with worker_processes.started(
            2, "tests/support/workers_program.py", f"--input_file={path}"
        ) as workers:
            for worker in workers:
                self.assertEqual(worker.wait(), 1, worker.log)
            logs = [worker.log for worker in workers]
        results = [_results(log) for log in logs]

        for index, result in enumerate(results):
            self.assertRegex(
                result["difference"],
                r"same flags, but worker 1 \(at 127.0.0.1:\d+\).*index is 1 "
                "there, and 0 on the chief",
            )
            self.assertEqual(result["from_chief"], {"token": 0})
            # The count of the chief, and the stop of any worker.
            self.assertEqual(result["next_calls"], [[3, False], [3, True]])
            self.assertRegex(
                logs[index], rf"(?m)^\[worker {index}\] \d\d:\d\d:\d\d "
            )
            self.assertIn("All 2 workers are running", logs[index])

        # Each worker has its rows of each batch; together, each record once.
        rows = np.array([result["rows"] for result in results])
        self.assertEqual(rows.shape, (2, 12))
        self.assertAllEqual(rows[0, :4], [0, 1, 2, 3])
        self.assertAllEqual(rows[1, :4], [4, 5, 6, -1])
        self.assertAllEqual(
            np.sort(rows[rows >= 0]), np.arange(workers_program.NUM_RECORDS)
        )

        # The second worker failed, and the first one reports its error.
        self.assertIn("ERROR: No space is left.", logs[1])
        self.assertRegex(
            logs[0], r"ERROR: Worker 1 \(at .*\) stopped: No space is left"
        )


def _results(log):
    _, marker, rest = log.partition("RESULTS ")
    if not marker:
        raise AssertionError(f"No results:\n{log}")
    return json.loads(rest.splitlines()[0])


if __name__ == "__main__":
    tf.test.main()
