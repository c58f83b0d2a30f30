"""Tests of the pinned requirements, which must cover all imports."""

import ast
import itertools
import re
import sys
import tomllib

import tensorflow as tf
from packaging import requirements

from bert_tf import errors
from tests.support import repository

_DISTRIBUTIONS = {
    "absl": "absl-py",
    "sklearn": "scikit-learn",
    "tensorflow_serving": "tensorflow-serving-api",
}


class RequirementsTest(tf.test.TestCase):
    def test_every_direct_dependency_is_pinned(self):
        for name in (
            "requirements.in",
            "requirements-docs.txt",
            "requirements-test.txt",
            "requirements-test-no-deps.txt",
        ):
            for line in _pins(name):
                self.assertRegex(line, r"^[a-z0-9-]+==[0-9][0-9.]*$")

    def test_requirements_are_the_pins_and_the_project(self):
        self.assertEqual(
            _pins("requirements.txt"), [*_pins("requirements.in"), "-e ."]
        )

    def test_lock_holds_every_pin_with_hashes_and_no_host(self):
        lock = (repository.ROOT / "requirements_lock.txt").read_text(
            encoding="utf-8"
        )
        for line in _pins("requirements.in") + _pins("requirements-test.txt"):
            self.assertRegex(lock, rf"(?m)^{re.escape(line)} \\\n +--hash=")
        self.assertNotRegex(lock, r"://|--(extra-)?index-url|--find-links")

    def test_wheel_takes_the_pins(self):
        pins = dict(pin.split("==") for pin in _pins("requirements.in"))
        pins |= dict(
            pin.split("==")
            for pin in _pins("requirements-beam.txt")
            if pin.startswith("apache-beam")
        )
        base, extras = _requirements_of_the_wheel()
        for requirement in [*base, *itertools.chain(*extras.values())]:
            if requirement.name in pins:
                self.assertIn(pins[requirement.name], requirement.specifier)
            self.assertNotIn("==", str(requirement.specifier))
        both = [x for x in base if re.match("tensorflow(-text)?$", x.name)]
        self.assertLen(both, 2)
        for requirement in both:
            self.assertIn(">=2.20", str(requirement))
            self.assertIn("<2.22", str(requirement))

    def test_imports_are_in_the_wheel_or_an_extra(self):
        base, extras = _requirements_of_the_wheel()
        names = {x.name for x in base}
        self.assertEqual(
            set(extras),
            {
                "all",
                "beam",
                "corpus",
                "gpu",
                "interop",
                "parquet",
                "serve",
                "tflite",
            },
        )
        for package, extra in errors.EXTRAS.items():
            name = package.replace("_", "-")
            self.assertNotIn(name, names)
            self.assertIn(name, [x.name for x in extras[extra]])
        names |= {x.replace("_", "-") for x in errors.EXTRAS}
        # TensorFlow requires fitting versions of these, so they have no pin.
        names |= {"google", "grpc", "bert-tf"}
        # Only imported to read a pytorch_model.bin, so it is optional.
        names.add("torch")
        unused = {x.name for x in base}
        for path in repository.files(".py"):
            if path.parts[0] == "bert_tf":
                for module in _imported(path) - sys.stdlib_module_names:
                    name = _DISTRIBUTIONS.get(module, module.replace("_", "-"))
                    self.assertIn(name, names, str(path))
                    unused.discard(name)
        self.assertEqual(unused, {"tensorboard"})  # tf.summary imports it.

    def test_imports_of_the_library_are_required(self):
        required = {pin.split("==")[0] for pin in _pins("requirements.in")}
        # TensorFlow requires fitting versions of these, so they have no pin.
        required |= {"google", "grpc", "tensorboard"}
        # Only imported to read a pytorch_model.bin, so it is optional.
        required.add("torch")
        # Only --runner needs it; see requirements-beam.txt.
        required.add("apache-beam")
        # tf-models-official brings it; a pin would exclude Apache Beam.
        required.add("pyarrow")
        ours = {"bert-tf", "export", "run"}
        for path in repository.files(".py"):
            if path.parts[0] not in ("bert_tf", "export", "run"):
                continue
            for module in _imported(path) - sys.stdlib_module_names:
                name = _DISTRIBUTIONS.get(module, module.replace("_", "-"))
                self.assertIn(name, required | ours, str(path))


def _pins(name):
    lines = (repository.ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _requirements_of_the_wheel():
    """Returns the wheel's requirements, and a dict of each extra's."""
    text = (repository.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    read = requirements.Requirement
    extras = project["optional-dependencies"].items()
    return (
        [read(line) for line in project["dependencies"]],
        {name: [read(line) for line in lines] for name, lines in extras},
    )


def _imported(path):
    """Returns the top-level packages that a file imports."""
    names = set()
    for node in ast.walk(
        ast.parse((repository.ROOT / path).read_text("utf-8"))
    ):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    return names


if __name__ == "__main__":
    tf.test.main()
