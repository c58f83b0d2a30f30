"""Splits the CPU into four logical devices, for tests of several replicas.

This must happen before TensorFlow is used, so call `make` at the top of a test
file: pytest imports all test files before the first test runs.
"""

import tensorflow as tf

COUNT = 4


def make() -> None:
    """Creates CPU:0 to CPU:3, unless another test file has done so."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if not tf.config.get_logical_device_configuration(cpu):
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * COUNT
        )
