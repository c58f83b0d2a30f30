#!/usr/bin/env bash
# Checks BUILD with Debian's Bazel 4.2.3, without internet.
#
#   tools/check_bazel.sh [TEST_TARGET ...]
#
# Local stand-ins take the place of what Bazel would fetch: rules_python and
# rules_cc name the native rules, and each required package is an empty
# library, because the tests run with .venv's Python. So a dependency of BUILD
# that is missing in the requirements fails here, too.
set -euo pipefail

cd "$(dirname "$0")/.."
root="$PWD"
cache="$root/.cache/bazel"
repositories="$cache/repositories"
rules=/usr/share/bazel

if ! command -v bazel > /dev/null || [[ ! -d $rules/rules/java ]]; then
  echo "ERROR: Bazel is not installed; \`apt-get install bazel-bootstrap" \
    "bazel-platforms bazel-rules-java bazel-rules-proto\` installs it." >&2
  exit 1
fi

make_pip_hub() {
  rm -rf "$repositories/pip"
  mkdir -p "$repositories/pip"
  touch "$repositories/pip/WORKSPACE"
  local package
  # Spell packages as rules_python does: lower case, with underscores.
  for package in $(grep -o -h '^[A-Za-z0-9._-]*' requirements.in requirements-test.txt |
    tr 'A-Z.-' 'a-z__'); do
    mkdir "$repositories/pip/$package"
    echo "py_library(name = \"$package\", visibility = [\"//visibility:public\"])" \
      > "$repositories/pip/$package/BUILD"
  done
}

overrides=(
  "--override_repository=pip=$repositories/pip"
  "--override_repository=platforms=$rules/tools/platforms"
  "--override_repository=remote_coverage_tools=$root/tools/bazel/remote_coverage_tools"
  "--override_repository=rules_cc=$root/tools/bazel/rules_cc"
  "--override_repository=rules_java=$rules/rules/java"
  "--override_repository=rules_proto=$rules/rules/proto"
  "--override_repository=rules_python=$root/tools/bazel/rules_python"
)

run_bazel() {
  local command="$1"
  shift
  bazel --batch --nohome_rc --output_user_root="$cache/output" \
    "$command" "${overrides[@]}" \
    --noshow_loading_progress --noshow_progress "$@"
}

# Each test file must be a target: a file in a new folder is easily forgotten.
check_test_targets() {
  diff <(find tests -name '*_test.py' | sed 's|^tests/||; s|\.py$||; s|/|_|g' | sort) \
    <(run_bazel query 'tests(//...)' 2> /dev/null | sed 's|^//:||' | sort) || {
    echo "ERROR: The test files (<) and the py_test targets (>) differ; see" \
      "TESTS in BUILD." >&2
    exit 1
  }
}

make_pip_hub
run_bazel query '//...'
check_test_targets
if [[ $# -eq 0 ]]; then
  # Build everything. The tests have already run without Bazel, so tests of the
  # lowest layers are enough to show that targets find their dependencies.
  set -- //... --test_tag_filters=base,flags
fi
run_bazel test "$@" \
  --incompatible_default_to_explicit_init_py \
  --local_test_jobs=2 \
  --nosandbox_debug \
  --symlink_prefix=/ \
  --test_env=CI \
  --test_env=PATH="$root/.venv/bin:/usr/bin:/bin" \
  --test_env=TF_CPP_MIN_LOG_LEVEL=2 \
  --test_output=errors
