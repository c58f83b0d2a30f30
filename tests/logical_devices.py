"""Splits the CPU into two logical devices, for tests of several replicas.

TensorFlow can do so only before it is used, so call `make_two` at the top of a
test file: pytest imports all of them before the first test runs.
"""

import tensorflow as tf


def make_two() -> None:
    """Makes CPU:0 and CPU:1, unless another test file has made them."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if not tf.config.get_logical_device_configuration(cpu):
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
