#!/usr/bin/env bash
# Makes .venv and installs the pinned requirements; does nothing when nothing
# changed since the last time.
#
#   tools/setup.sh run     what running needs
#   tools/setup.sh test    that, and what tests and checks need
#   tools/setup.sh docs    another environment, .cache/docs-venv, for the site
#
# PYTHON names another interpreter than the one found on the path. uv installs,
# in a tenth of pip's time; pip does where uv fails, and where pip is configured
# for an index instead of PyPI, as uv does not read that.
set -euo pipefail

cd "$(dirname "$0")/.."

fail() {
  echo "ERROR: $1" >&2
  exit 1
}

is_supported() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
    2> /dev/null
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if is_supported "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  fail "Python 3.11, 3.12 or 3.13 is needed. Found none as ${PYTHON:-python3.11, python3.12, python3.13 or python3}; install it, or name it with \`make setup PYTHON=/path/to/python3.11\`."
}

# The same for the same contents, whatever the files' dates.
fingerprint() {
  local name files=(pyproject.toml tools/setup.sh)
  for name in requirements*.txt; do
    # The site has an environment of its own.
    [[ $name == requirements-docs.txt ]] || files+=("$name")
  done
  cat "${files[@]}" | sha256sum | cut -d' ' -f1
}

# Installs packages into the environment in a folder.
install() {
  local python="$1/bin/python" uv
  local pip=("$python" -m pip install --quiet --disable-pip-version-check)
  shift
  if ! "$python" -m pip config list | grep -q '\.index-url='; then
    uv="$(grep '^uv==' requirements-test.txt)"
    if "${pip[@]}" "$uv" &&
      "$python" -m uv --quiet pip install --python "$python" "$@"; then
      return
    fi
    echo "uv could not install the packages; pip tries." >&2
  fi
  # Setuptools warns about every editable installation that has no src folder.
  PYTHONWARNINGS=ignore "${pip[@]}" "$@"
}

make_environment() {
  if is_supported .venv/bin/python && .venv/bin/python -m pip --version > /dev/null 2>&1; then
    return
  fi
  local python
  python="$(find_python)"
  echo "Making .venv with $("$python" --version)."
  "$python" -m venv --clear .venv ||
    fail "$python cannot make a virtual environment; on Debian and Ubuntu install the package python3-venv."
}

make_docs_environment() {
  local folder=.cache/docs-venv wanted python
  wanted="$(sha256sum requirements-docs.txt | cut -d' ' -f1)"
  if is_supported "$folder/bin/python" &&
    [[ "$(cat "$folder/.setup" 2> /dev/null)" == "$wanted" ]]; then
    return
  fi
  python="$(find_python)"
  echo "Making $folder with $("$python" --version)."
  "$python" -m venv --clear "$folder" ||
    fail "$python cannot make a virtual environment; on Debian and Ubuntu install the package python3-venv."
  install "$folder" -r requirements-docs.txt
  echo "$wanted" > "$folder/.setup"
}

main() {
  if [[ ${1:-} == docs ]]; then
    make_docs_environment
    return
  fi
  local requirements=(-r requirements.txt)
  case "${1:-}" in
    run) ;;
    test) requirements+=(-r requirements-test.txt) ;;
    *) fail "Expected \`tools/setup.sh run\`, \`tools/setup.sh test\` or \`tools/setup.sh docs\`." ;;
  esac
  local wanted
  wanted="$(fingerprint)"
  # A set-up for tests holds what running needs.
  local stamp
  for stamp in ".venv/.setup-test" ".venv/.setup-$1"; do
    if [[ -x .venv/bin/python && "$(cat "$stamp" 2> /dev/null)" == "$wanted" ]]; then
      return
    fi
  done
  make_environment
  echo "Installing the requirements into .venv (a minute the first time)."
  install .venv "${requirements[@]}"
  if [[ $1 == test ]]; then
    install .venv --no-deps -r requirements-test-no-deps.txt
  fi
  echo "$wanted" > ".venv/.setup-$1"
}

main "$@"
