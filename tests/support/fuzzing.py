"""The number of examples of the fuzz tests, and mutations of files.

  FUZZ_EXAMPLES=10000 pytest tests/fuzz/model_files_test.py

draws that number of new examples in each test instead of the few that are the
same in every run.
"""

import json
import os

import hypothesis
from hypothesis import strategies as st

_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))

_JUNK = (
    *(None, True, False, "false", "", "a", "\0", "../../etc/passwd"),
    *(0, -1, 1.5, 2**31, 10**400, 1e300, float("nan"), float("inf")),
    *([], {}, ["a", "a"], [[]], [1, 2], {"a": {}}, {"0": "a"}),
    *("x" * 300, "\x1b[31m", "\u2028", "\n", ["a", 1], -(2**63)),
)
_JSON_ENDS = (b"\0", b"\xff", b"\xef\xbb\xbf", b"{", b"[" * 100_000, b"//")


def run(examples, *strategies):
    """Returns a decorator that runs a check at once with many drawn values.

    Args:
      examples: The number of examples, if FUZZ_EXAMPLES does not set it.
      *strategies: The strategies of the check's arguments.
    """
    settings = hypothesis.settings(
        max_examples=_EXAMPLES or examples,
        deadline=None,  # No test depends on time.
        derandomize=not _EXAMPLES,
        database=None,
        print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    def decorate(check):
        settings(hypothesis.given(*strategies)(check))()

    return decorate


# Mutations draw from this generator, so Hypothesis can simplify them.
RANDOM = st.randoms(use_true_random=False)


def mutate_bytes(rng, contents):
    """Returns a file's bytes with one change, which may have no effect."""
    kind = rng.randrange(6)
    place = rng.randrange(len(contents) + 1)
    if kind == 0 and contents:
        place = min(place, len(contents) - 1)
        changed = bytes([contents[place] ^ 1 << rng.randrange(8)])
        return contents[:place] + changed + contents[place + 1 :]
    if kind == 1:
        return contents[:place]
    if kind == 2:
        end = rng.randrange(len(contents) + 1)
        return (
            contents[:place]
            + contents[min(place, end) : end]
            + (contents[place:])
        )
    if kind == 3:
        return contents[:place] + rng.choice(_JSON_ENDS) + contents[place:]
    if kind == 4:
        return rng.choice(_JSON_ENDS) + contents
    return contents + rng.choice(_JSON_ENDS)


def mutate_json(rng, contents):
    """Returns a JSON document with another type, key or order somewhere.

    Returns:
      The bytes, and True if the document's meaning is unchanged.
    """
    document = json.loads(contents)
    kind = rng.randrange(5)
    if kind == 0:
        if isinstance(document, dict):
            document = dict(reversed(document.items()))
        return json.dumps(document, indent=rng.randrange(5)).encode(), True
    places = list(_places(document))
    holder, key = rng.choice(places)
    if kind == 1:
        del holder[key]
    elif kind == 2 and isinstance(holder, dict):
        # A dict cannot have a key twice, so remove a marker from the text.
        value = holder[key]
        holder[key + "<twice>"] = rng.choice((value, *_JUNK))
        text = json.dumps(document).replace("<twice>", "")
        return text.encode(), False
    elif kind == 3:
        holder[key] = [holder[key]] * rng.randrange(3)
    else:
        holder[key] = rng.choice(_JUNK)
    return json.dumps(document).encode(), False


def _places(value):
    """Yields each container of a document with each of its keys."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return
    for key, inner in items:
        yield value, key
        yield from _places(inner)


def replace_file(rng, path):
    """Replaces a file by something else; returns True for a link to it."""
    kind = rng.choice(["link", "loop", "pipe", "folder", "device", "nothing"])
    moved = path + ".moved"
    os.rename(path, moved)
    if kind == "link":
        os.symlink(moved, path)
    elif kind == "loop":
        os.symlink(path, path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        os.mkdir(path)
    elif kind == "device":
        os.symlink("/dev/zero", path)
    return kind == "link"


def restore_file(path, contents):
    """Undoes `replace_file` and every change of the contents."""
    if os.path.isdir(path):
        os.rmdir(path)
    elif os.path.lexists(path):
        os.remove(path)
    if os.path.lexists(path + ".moved"):
        os.remove(path + ".moved")
    with open(path, "wb") as file:
        file.write(contents)
