"""Tests of the scripts in export/, as users run them."""

import importlib
import pathlib
import re

import tensorflow as tf
from absl.testing import parameterized

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SCRIPTS = ("savedmodel.py", "tflite.py", "verify.py")


class ScriptsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*_SCRIPTS)
    def test_holds_no_logic(self, script):
        door = (_ROOT / "export" / script).read_text(encoding="utf-8")
        (module,) = re.findall(r'commands\.run\("(\w+)"\)', door)
        self.assertEqual(
            door.split('"""\n', 1)[1],
            "\nfrom bert_tf import commands\n\n"
            'if __name__ == "__main__":\n'
            f'    commands.run("{module}")\n',
        )
        command = importlib.import_module(f"bert_tf.commands.{module}")
        self.assertIn(f"python export/{script}", command.__doc__)


if __name__ == "__main__":
    tf.test.main()
