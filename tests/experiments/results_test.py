"""Tests for bert_tf.experiments.results."""

import json
import os
import subprocess
from unittest import mock

import tensorflow as tf

from bert_tf.experiments import jobs
from bert_tf.experiments import results
from bert_tf.experiments.jobs import Job
from bert_tf.experiments.jobs import Score


class ScoreTest(tf.test.TestCase):
    def test_test_set_is_scored_beside_dev(self):
        folder = self.create_tempdir()
        splits = {"dev": {"f1": 0.5}, "test": {"f1": 0.25, "loss": 1.0}}
        for with_test in (True, False):
            if not with_test:
                del splits["test"]
            folder.create_file("eval_results.json", json.dumps(splits))
            how = Score(f"{jobs.OUT}/eval_results.json", "dev", "f1", 100.0, 1)
            job = Job("a", jobs.CELL, "a", (), (), how.results, 0.0, how)
            found = results.score(folder.full_path, job, {})
            self.assertEqual(found["score"], 50.0)
            self.assertEqual(
                found.get("test_score"), 25.0 if with_test else None
            )


class CommitTest(tf.test.TestCase):
    def test_changed_files_have_a_hash_of_their_own(self):
        clone = self.create_tempdir().full_path
        module = os.path.join(clone, "bert_tf", "experiments", "results.py")
        os.makedirs(os.path.dirname(module))

        def git(*words):
            start = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
            subprocess.run([*start, *words], cwd=clone, check=True)

        def commit_with(text):
            with open(module, "w", encoding="latin-1") as file:
                file.write(text)
            with mock.patch.object(results, "__file__", module):
                return results.current_commit()

        git("init", "-q")
        commit_with("a")
        git("add", ".")
        git("commit", "-qm", "a")
        clean, first, second = map(commit_with, ("a", "b", "\xe9"))
        self.assertRegex(clean, r"^[0-9a-f]{12}$")
        self.assertRegex(first, rf"^{clean}\+[0-9a-f]{{8}}$")
        self.assertStartsWith(second, f"{clean}+")
        self.assertNotEqual(first, second)
        self.assertEqual(commit_with("b"), first)


if __name__ == "__main__":
    tf.test.main()
