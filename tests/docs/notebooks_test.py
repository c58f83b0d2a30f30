"""Checks the notebooks as they are kept, without executing them."""

import ast
import base64
import json
import pathlib
import re

import tensorflow as tf
from absl.testing import parameterized

from tools import docs_links

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_FOLDER = _ROOT / "notebooks"
_NAMES = ("answer_questions", "classify", "phone", "pretrain", "serve", "tag")
_MOST_BYTES = 100_000


def _cells(name, kind):
    text = (_FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    return [cell for cell in cells if cell["cell_type"] == kind]


def _source(cell):
    return "".join(cell["source"])


class NotebooksTest(tf.test.TestCase, parameterized.TestCase):
    def test_there_are_six(self):
        names = {path.stem for path in _FOLDER.glob("*.ipynb")}
        self.assertEqual(names, set(_NAMES))

    @parameterized.parameters(*_NAMES)
    def test_cells_parse_and_ran_in_order(self, name):
        cells = _cells(name, "code")
        numbers = [cell["execution_count"] for cell in cells]
        self.assertEqual(numbers, list(range(1, len(cells) + 1)))
        for cell in cells:
            ast.parse(re.sub(r"(?m)^!.*$", "", _source(cell)))

    @parameterized.parameters(*_NAMES)
    def test_outputs_are_kept_with_a_plot_and_without_errors(self, name):
        outputs = [x for cell in _cells(name, "code") for x in cell["outputs"]]
        self.assertNotIn("error", [x["output_type"] for x in outputs])
        pictures = [
            base64.b64decode("".join(x["data"]["image/png"]))
            for x in outputs
            if "image/png" in x.get("data", {})
        ]
        self.assertNotEmpty(pictures)
        for picture in pictures:
            self.assertLess(len(picture), _MOST_BYTES)

    @parameterized.parameters(*_NAMES)
    def test_names_no_place_of_one_machine(self, name):
        text = (_FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
        self.assertNotRegex(text, r"/(home|root|Users|tmp|work)/\w")

    @parameterized.parameters(*_NAMES)
    def test_links_name_files_and_headings(self, name):
        path = f"notebooks/{name}.ipynb"
        for cell in _cells(name, "markdown"):
            for link in docs_links.links(_source(cell)):
                file, anchor = docs_links.target(path, link)
                self.assertTrue((_ROOT / file).is_file(), link)
                if anchor:
                    page = (_ROOT / file).read_text(encoding="utf-8")
                    self.assertIn(anchor, docs_links.anchors(page), link)


if __name__ == "__main__":
    tf.test.main()
