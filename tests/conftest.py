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

# A test file may use TensorFlow at import, which would fix the devices.
logical_devices.make()


def pytest_configure(config):
    """Parses absl's flags, as `tf.test.main` does."""
    # A folder per run, or concurrent runs would delete each other's files.
    config.test_tmpdir = tempfile.mkdtemp(prefix="bert_tf-tests-")
    flags.FLAGS(["pytest", f"--test_tmpdir={config.test_tmpdir}"])
    # Workers of pytest-xdist inherit the variable, so all share one folder.
    os.environ.setdefault(
        made_once.VARIABLE, os.path.join(config.test_tmpdir, "made_once")
    )


def pytest_collection_finish():
    """Makes garbage collection rare, and exempts the imported objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_sessionfinish():
    gc.unfreeze()  # Hypothesis must find the referrers.


def pytest_unconfigure(config):
    shutil.rmtree(config.test_tmpdir, ignore_errors=True)


@pytest.fixture(autouse=True)
def log_as_scripts_do():
    """Resets the log verbosity, which imports and tests may change."""
    logging.set_verbosity(logging.INFO)


@pytest.fixture(autouse=True)
def separate_collectives():
    """Separates the collectives of different tests' strategies.

    Otherwise two strategies would use one key with tensors of two shapes,
    which TensorFlow refuses; TensorFlow's own tests change the base, too.
    """
    tf.distribute.MirroredStrategy._collective_key_base += 100_000


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    # This method of tf.test.TestCase is no test; it would count as skipped.
    items[:] = [item for item in items if item.name != "test_session"]
    # Classes of few tests run first: their tests take longest, so if they ran
    # last, all other workers would wait for them.
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
