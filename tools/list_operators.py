"""Lists the operators of an old TensorFlow, for bert_tf/export/operators.py.

python tools/list_operators.py > bert_tf/export/tensorflow_2_12_operators.txt

The Python must be one that has TensorFlow 2.12.1 (tests/export/
tensorflow_2_12.txt), whose operators TensorFlow Serving 2.12 links.
"""

import re

import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

# What no graph that predicts on a CPU has.
_LEFT_OUT = re.compile(
    "^_|TPU|Tpu|Xla|Dataset|Iterator|BoostedTrees|TensorForest|TRT|Collective|"
    "Nccl|DTensor|TfLite|Summary|Queue|Reader|Barrier|Cudnn"
)


def main() -> None:
    known = op_def_pb2.OpList()
    known.ParseFromString(
        pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    )
    print(
        f"# The operators of TensorFlow {tf.__version__} but those of training,"
        " input pipelines and\n# accelerators; made by tools/list_operators.py."
    )
    for name in sorted(op.name for op in known.op):
        if not _LEFT_OUT.search(name):
            print(name)


if __name__ == "__main__":
    main()
