"""Makes testdata/minilm/outputs.npz, the outputs of transformers for MiniLM.

    python -m tools.make_minilm_outputs --nodry_run

The program makes an environment with the packages of `minilm.PEER` and computes
on the CPU, deterministically.
"""

import json
import os
import tempfile

import numpy as np
from absl import app
from absl import flags

from tests.support import environments
from tests.support import minilm

_DRY_RUN = flags.DEFINE_bool("dry_run", True, "Write nothing.")


def main(argv: list[str]) -> None:
    del argv
    if _DRY_RUN.value:
        raise SystemExit(f"Would write {minilm.OUTPUTS_FILE}: --nodry_run.")
    python = environments.make("transformers", *minilm.PEER)
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "output.npz")
        requests = os.path.join(folder, "requests.json")
        request = {
            "do": "encode",
            "model": minilm.directory(),
            "texts_file": str(minilm.TEXTS_FILE),
            "output": output,
        }
        with open(requests, "w", encoding="utf-8") as file:
            json.dump([request], file)
        program = os.path.join(
            os.path.dirname(minilm.__file__), "transformers_program.py"
        )
        environments.run(python, program, requests)
        with np.load(output) as made:
            hidden, lengths = made["hidden"], made["lengths"]
            np.savez_compressed(
                minilm.OUTPUTS_FILE,
                ids=made["ids"].astype(np.uint16),
                segments=made["segments"].astype(np.uint8),
                lengths=lengths.astype(np.uint16),
                pooled=made["pooled"],
                rows=hidden[minilm.chosen_rows(lengths)],
                projections=minilm.project(hidden).astype(np.float32),
            )


if __name__ == "__main__":
    app.run(main)
