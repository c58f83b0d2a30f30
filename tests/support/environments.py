"""Virtual environments for tests that need other packages."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys

from tests.support import made_once
from tests.support.repository import ROOT

_CACHE = ROOT / ".cache" / "environments"
# uv takes a tenth of pip's time but ignores pip's variables.
_UV = (sys.executable, "-m", "uv", "--quiet")
_INDEX = {
    of_uv: os.environ[of_pip]
    for of_uv, of_pip in {
        "UV_FIND_LINKS": "PIP_FIND_LINKS",
        "UV_DEFAULT_INDEX": "PIP_INDEX_URL",
        "UV_INDEX": "PIP_EXTRA_INDEX_URL",
    }.items()
    if of_pip in os.environ
}


def run(*command: str, **options) -> str:
    """Runs a program; returns its output, or raises an error that has it.

    Without `env`, the program gets `clean_environment()`.
    """
    options.setdefault("env", clean_environment())
    result = subprocess.run(
        command,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    if result.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {result.returncode}:\n"
            f"{result.stdout[-5000:]}"
        )
    return result.stdout


def newest_python() -> str:
    """Returns the newest Python here that the project supports."""
    for name in ("python3.13", "python3.12"):
        # A shim of pyenv fails if its version is not selected.
        with contextlib.suppress(OSError, RuntimeError):
            return run(name, "-c", "import sys; print(sys.executable)").strip()
    return sys.executable


def make(name: str, *pip_arguments: str, python: str = sys.executable) -> str:
    """Returns the Python of a cached environment, or of a new one.

    Args:
      name: The environment's name.
      *pip_arguments: Arguments of `uv pip install` at the repository's root:
        packages with versions, or `-r` and a file. The environment is rebuilt
        when the arguments or the named files change.
      python: The Python that it is made with.

    Raises:
      RuntimeError: If it cannot be built. Then tests fail; they do not skip.
    """
    version = sys.version if python == sys.executable else python
    key = hashlib.sha256(repr((version, pip_arguments)).encode())
    for argument in pip_arguments:
        if argument.startswith("."):  # The project itself.
            argument = "pyproject.toml"
        if (ROOT / argument).is_file():
            key.update((ROOT / argument).read_bytes())
    folder = _CACHE / f"{name}-{key.hexdigest()[:12]}"
    made = str(folder / "bin" / "python")
    _CACHE.mkdir(parents=True, exist_ok=True)
    # Other processes wait here, or two would build the same folder.
    with open(_CACHE / f"{name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            for stale in _CACHE.glob(f"{name}-*"):
                shutil.rmtree(stale)
            venv = (f"--python={python}", str(folder))
            # Some tests call the environment's pip, too.
            run(*_UV, "venv", "--seed", *venv)
            install(made, *pip_arguments)
            (folder / "complete").touch()
    return made


def install(python: str, *pip_arguments: str) -> None:
    """Installs packages into an environment, as `uv pip install` does."""
    run(
        *(*_UV, "pip", "install", f"--python={python}", *pip_arguments),
        cwd=ROOT,
        env=clean_environment() | _INDEX,
    )


def clean_environment() -> dict[str, str]:
    """Returns the environment variables, without those of our packages."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", made_once.VARIABLE)
    return {key: os.environ[key] for key in os.environ if key not in ours}
