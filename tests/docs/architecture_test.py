"""Checks that docs/architecture.md and the README name what exists."""

import pathlib
import re

import tensorflow as tf

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_LIBRARY = _ROOT / "bert_tf"


class ArchitectureTest(tf.test.TestCase):
    def test_every_path_exists(self):
        page = (_ROOT / "docs" / "architecture.md").read_text("utf-8")
        paths = set(re.findall(r"[`\[]((?:\w+/)+\w+\.py)[`\]]", page))
        self.assertGreater(len(paths), 40)
        for path in sorted(paths):
            exists = (_LIBRARY / path).exists() or (_ROOT / path).exists()
            self.assertTrue(exists, path)

    def test_every_room_is_named(self):
        rooms = {
            path.stem
            for path in _LIBRARY.iterdir()
            if path.suffix == ".py" or (path / "__init__.py").exists()
        } - {"__init__"}
        page = (_ROOT / "docs" / "architecture.md").read_text("utf-8")
        table = page.split("| rooms | contents |")[1].split("\n\n")[0]
        self.assertEqual(rooms - set(re.findall(r"`(\w+)`", table)), set())
        tree = (_ROOT / "README.md").read_text("utf-8")
        tree = tree.split("## What is where")[1]
        folders = {room for room in rooms if (_LIBRARY / room).is_dir()}
        self.assertEqual(
            folders - set(re.findall(r"(?m)^  (\w+)/ ", tree)), set()
        )


if __name__ == "__main__":
    tf.test.main()
