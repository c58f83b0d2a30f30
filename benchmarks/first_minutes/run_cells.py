"""Executes the cells of a notebook in one process.

    python run_cells.py NOTEBOOK

Cells begin with `# %%`. A comment `# -- PHASE` in a cell prints the phase and
the time before the cell runs.
"""

import linecache
import re
import sys
import time


def main(path):
    with open(path, encoding="utf-8") as file:
        cells = re.split(r"^# %%\n", file.read(), flags=re.MULTILINE)
    names = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        phase = re.search(r"^# -- (\w+)", cell, re.MULTILINE)
        if phase:
            print(f"== {phase[1]} {time.time()}", flush=True)
        # As in IPython, so that code can read its own source.
        name = f"<cell {number}>"
        linecache.cache[name] = len(cell), None, cell.splitlines(True), name
        exec(compile(cell, name, "exec"), names)


if __name__ == "__main__":
    main(sys.argv[1])
