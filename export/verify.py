r"""Checks that an export, or a server that has it, says what its model says.

  python export/verify.py --export_dir=served/mrpc --model_dir=output/mrpc/model

With --url a live server is asked the same: http://HOST:PORT/v1/models/NAME, or
HOST:PORT of gRPC, and by Classify and Regress, for metadata and status, too.
What is wrong is named, and the exit status is then 1.
"""

import pathlib
import sys

from bert_tf import cli
from bert_tf.run_config.export import VerifyConfig


def main(config: VerifyConfig) -> None:
    # Of a script only its own folder is on the path, not that of `export`.
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    from export import verification  # So --help answers at once.

    verification.run(config)


if __name__ == "__main__":
    cli.run(main, VerifyConfig)
