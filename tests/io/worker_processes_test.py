import operator
import os
import subprocess
import sys

import tensorflow as tf

from bert_tf.io import worker_processes

_PARENT = """
import time
from bert_tf.io import worker_processes
with worker_processes.pool(1) as pool:
    print(pool.submit(bool, 1).result(), flush=True)
    pool.submit(time.sleep, 600).result()
"""


class FinishedTest(tf.test.TestCase):
    def test_takes_few_tasks_ahead_and_finishes_all(self):
        taken = []

        def tasks():
            for number in range(20):
                taken.append(number)
                yield number, 100

        results = {}
        with worker_processes.pool(2) as pool:
            for task, result in worker_processes.finished(
                pool, 2, operator.add, tasks()
            ):
                if not results:
                    # Four at once, and what replaced the first ones.
                    self.assertLessEqual(len(taken), 4)
                results[task] = result
        self.assertEqual(results, {(n, 100): n + 100 for n in range(20)})

    def test_workers_end_with_a_process_that_is_killed(self):
        with subprocess.Popen(
            [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True
        ) as parent:
            self.assertEqual(parent.stdout.readline(), "True\n")
            parent.kill()
            # The worker has the pipe, too, and keeps it open until it ends.
            parent.communicate(timeout=60)

    def test_the_work_is_done_by_other_processes(self):
        with worker_processes.pool(1) as pool:
            [(_, pid)] = worker_processes.finished(pool, 1, os.getpid, [()])
        self.assertNotEqual(pid, os.getpid())


if __name__ == "__main__":
    tf.test.main()
