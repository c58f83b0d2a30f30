"""Fixtures and hooks for all tests under pytest."""

import collections
import gc
import os
import shutil
import tempfile

import pytest
import tensorflow as tf
from absl import flags
from absl import logging
from absl.testing import absltest  # noqa: F401  # Defines --test_tmpdir.

from tests.support import logical_devices
from tests.support import made_once

# Here, because a test file may use TensorFlow when it is imported.
logical_devices.make()


def pytest_configure(config):
    """Parses absl's flags, as `tf.test.main` does."""
    # A separate folder: concurrent runs do not delete each other's files.
    config.test_tmpdir = tempfile.mkdtemp(prefix="bert_tf-tests-")
    flags.FLAGS(["pytest", f"--test_tmpdir={config.test_tmpdir}"])
    # The workers of pytest-xdist get the folder of their parent.
    os.environ.setdefault(
        made_once.VARIABLE, os.path.join(config.test_tmpdir, "made_once")
    )


def pytest_collection_finish():
    """Makes garbage collections few, without the imported objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_sessionfinish():
    gc.unfreeze()  # Hypothesis then asks what refers to an object.


def pytest_unconfigure(config):
    shutil.rmtree(config.test_tmpdir, ignore_errors=True)


@pytest.fixture(autouse=True)
def log_as_scripts_do():
    """Resets the log verbosity, which imports and tests may change."""
    logging.set_verbosity(logging.INFO)


@pytest.fixture(autouse=True)
def separate_collectives():
    """Separates the collectives of different tests' strategies.

    Every strategy of a process counts its keys from the same number, and
    shapes stick to keys; TensorFlow's own tests help themselves like this.
    """
    tf.distribute.MirroredStrategy._collective_key_base += 100_000


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    # Not a test: a method of tf.test.TestCase that skips itself.
    items[:] = [item for item in items if item.name != "test_session"]
    # The classes of few tests first: their tests take longest, and at the end
    # all other workers would wait for them.
    sizes = collections.Counter(item.parent for item in items)
    items.sort(key=lambda item: sizes[item.parent])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Fails a skipped `environment` test: it must not pass unnoticed."""
    report = yield
    if report.skipped and item.get_closest_marker("environment"):
        report.outcome = "failed"
        report.longrepr = f"Skipped, which it must not be: {report.longrepr}"
    return report
