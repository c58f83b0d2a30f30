"""Makes a release: sets the version, builds and tries the wheel and the sdist.

  python tools/release.py 0.2.0

Sets the version and turns the changelog's [Unreleased] into a section. Builds
the sdist, and the wheel from it, installs each in a fresh environment and uses
it as a new user would. All of this happens in a copy, so files change and dist/
appears only if every step passes.
"""

import datetime
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PROGRAM = _ROOT / "tests" / "support" / "installed_program.py"
_EXTRAS = "[serve,tflite]"
_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_UNRELEASED = "## [Unreleased]\n"
# Files with the version, and a pattern that matches it in each file.
_PLACES = {
    "bert_tf/__init__.py": r'(?m)(^__version__ = ")[^"]+',
    "CITATION.cff": r"(?m)(^version: ).+$",
    "MODULE.bazel": r'(?m)(^    name = "bert_tf",\n    version = ")[^"]+',
    "docs/installing.md": r"(dist/bert_tf-)\d[^-]*",
    ".github/ISSUE_TEMPLATE/bug.yml": r"(?m)(^        bert_tf )[^,]+",
}


def prepare(root: pathlib.Path, version: str, date: str) -> list[str]:
    """Sets the version and the changelog's section; returns changed files.

    Raises:
      SystemExit: If the version is not valid, or the changelog is empty.
    """
    if not _VERSION.fullmatch(version):
        sys.exit(f"Expected a version such as 0.2.0. Received: {version!r}.")
    for name, pattern in _PLACES.items():
        path = root / name
        text, count = re.subn(pattern, rf"\g<1>{version}", path.read_text())
        if count != 1:
            sys.exit(f"{name} must have one version. Received: {count}.")
        path.write_text(text)
    path = root / "CHANGELOG.md"
    text = path.read_text()
    if f"## [{version}]" not in text:
        _, found, rest = text.partition(_UNRELEASED)
        if not found or not rest.partition("\n## ")[0].strip():
            sys.exit(
                "CHANGELOG.md must list the changes below `## [Unreleased]`, "
                f"or have a section `## [{version}]`."
            )
        heading = f"{_UNRELEASED}\n## [{version}] - {date}\n"
        path.write_text(text.replace(_UNRELEASED, heading, 1))
    return [*_PLACES, "CHANGELOG.md"]


def _run(*command: str | pathlib.Path, cwd: pathlib.Path) -> None:
    print(">", *command, flush=True)
    subprocess.run([str(word) for word in command], cwd=cwd, check=True)


def _make_environment(folder: pathlib.Path, *packages: str) -> pathlib.Path:
    """Returns the Python of a fresh environment with some packages."""
    folder.mkdir()
    _run(sys.executable, "-m", "venv", ".", cwd=folder)
    python = folder / "bin" / "python"
    _run(python, "-m", "pip", "install", "--quiet", *packages, cwd=folder)
    return python


def _try(archive: pathlib.Path, folder: pathlib.Path) -> None:
    """Installs a wheel or an sdist and uses it in an empty folder."""
    python = _make_environment(folder, f"{archive}{_EXTRAS}")
    _run(python, "-m", "pip", "check", cwd=folder)
    work = folder / "work"
    work.mkdir()
    _run(python, _PROGRAM, cwd=work)


def _copy_sources(target: pathlib.Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=_ROOT, check=True, capture_output=True
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_ROOT / name, target / name)


def main(version: str) -> None:
    """Makes a release of the committed files."""
    status = ["git", "status", "--porcelain", "--untracked-files=no"]
    if subprocess.run(status, cwd=_ROOT, check=True, stdout=-1).stdout:
        sys.exit("Expected committed files; see `git status`.")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        source = folder / "source"
        _copy_sources(source)
        today = datetime.date.today().isoformat()
        changed = prepare(source, version, today)
        python = _make_environment(folder / "build", "build")
        _run(python, "-m", "build", cwd=source)
        archives = sorted((source / "dist").iterdir())
        for number, archive in enumerate(archives):
            environment = folder / f"environment{number}"
            _try(archive, environment)
            shutil.rmtree(environment)
        for name in changed:
            shutil.copy(source / name, _ROOT / name)
        (_ROOT / "dist").mkdir(exist_ok=True)
        for archive in archives:
            shutil.copy(archive, _ROOT / "dist")
    print(
        f"\nbert_tf {version}: {', '.join(x.name for x in archives)} in dist/."
    )
    print(f'Next: git commit -am "Release {version}" && git tag v{version}')


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
