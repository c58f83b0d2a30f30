"""Runs the examples of docs/serving.md on models with the same heads."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import tempfile
import urllib.request

import pytest
import tensorflow as tf

from bert_tf.serving import model_config
from tests.support import every_head
from tests.support import live_server

_PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/serving.md"
_EXAMPLE = re.compile(r"```bash\n(curl -d .*)\n```\n\n```json\n(.*)\n```")
_PYTHON = re.compile(r"(?ms)^```python\n(.*?)^```$")
_GRPC, _REST = "localhost:8500", "localhost:8501"
# The page's names of models, and the kinds of their heads.
_HEADS = {
    "topics": "classification",
    "names": "tagging",
    "squad": "question_answering",
}


def _form(value):
    """Returns the keys and types of a JSON value, without its contents."""
    if isinstance(value, dict):
        return {name: _form(each) for name, each in value.items()}
    if isinstance(value, list):
        forms = [_form(each) for each in value]
        # A random model's lists have other lengths, so a form counts once.
        return [form for i, form in enumerate(forms) if form not in forms[:i]]
    return type(value).__name__


@pytest.mark.slow
class ServingDocumentationTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        published = every_head.publish(with_ids=False)
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        os.mkdir(os.path.join(cls.folder, "served"))
        cls.models = {}
        for name, head in _HEADS.items():
            cls.models[name] = os.path.join(cls.folder, "served", name)
            os.symlink(published[head].output_dir, cls.models[name])
        cls.grpc, cls.rest = cls.enterClassContext(
            live_server.serve(cls.folder, cls.models)
        )
        cls.text = _PAGE.read_text(encoding="utf-8")

    def test_requests_are_answered_in_the_form_that_is_shown(self):
        examples = _EXAMPLE.findall(self.text)
        self.assertLen(examples, 4)
        for command, shown in examples:
            _, _, body, url = shlex.split(command)
            address = url.replace(_REST, f"http://{self.rest}")
            self.assertNotEqual(address, url)
            with (
                self.subTest(command),
                urllib.request.urlopen(address, body.encode()) as response,
            ):
                self.assertEqual(
                    _form(json.load(response)), _form(json.loads(shown))
                )

    def test_programs_on_the_page_answer_as_the_model(self):
        programs = _PYTHON.findall(self.text)
        self.assertLen(programs, 2)
        found = {}
        with contextlib.chdir(self.folder):
            for program in programs:
                self.assertIn("topics", program)
                exec(program.replace(_GRPC, self.grpc), found)
        expected = tf.saved_model.load(self.models["topics"] + "/1").signatures[
            "serving_default"
        ](text=tf.constant(["It rains.", "A draw."]))
        self.assertAllClose(found["probabilities"], expected["probabilities"])
        self.assertEqual(found["labels"], expected["label"].numpy().tolist())

    def test_configuration_of_several_models_is_read(self):
        (text,) = re.findall(r"(?ms)^model_config_list.*?^}$", self.text)
        path = os.path.join(self.folder, "documented.config")
        pathlib.Path(path).write_text(text, encoding="utf-8")
        topics, names = model_config.read(path)
        self.assertEqual((topics.name, names.name), ("topics", "names"))
        self.assertEqual(topics.labels, {"stable": 1})


if __name__ == "__main__":
    tf.test.main()
