"""Workers that die or fall silent: how the others learn of it, and leave."""

import tensorflow as tf

from bert_tf.cluster import Cluster
from bert_tf.errors import UserError


def explain(
    error: tf.errors.OpError, cluster: Cluster | None
) -> UserError | None:
    """Returns the error to raise if another worker is behind this one."""
    del error
    if cluster is None:
        return None
    return None
