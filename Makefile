# `make` lists the targets. Nothing but Python 3.11 or 3.12 need be installed.

PYTHON_RUN := .venv/bin/python
PYTEST := TF_CPP_MIN_LOG_LEVEL=2 $(PYTHON_RUN) -m pytest -q
# A second worker on the second core; a test file's set-up is repeated in each.
PARALLEL ?= -n 2 --dist worksteal
# What a class has set up takes minutes where all takes long.
PARALLEL_CLASSES ?= -n 2 --dist loadscope
STEPS ?=

.PHONY: help setup setup-test demo test test-fast test-slow lint layers bazel \
	lock bench clean

help:
	@echo "make setup      makes .venv with everything that running needs"
	@echo "make demo       from the text on this machine to a tiny BERT, a classifier, a server (STEPS=50 is a short one)"
	@echo "make test       the test suite"
	@echo "make test-fast  its tests that take seconds"
	@echo "make test-slow  tests that make environments of their own, or take long"
	@echo "make lint       ruff, and formatting"
	@echo "make layers     who may import whom"
	@echo "make bazel      the BUILD file (needs Debian's bazel-bootstrap)"
	@echo "make bench      lists the benchmarks"
	@echo "make lock       makes requirements_lock.txt anew"
	@echo "make clean      removes caches and the demo's output, not .venv"

setup:
	@tools/setup.sh run

setup-test:
	@tools/setup.sh test

demo: setup
	$(PYTHON_RUN) run/demo.py --output_dir=.demo $(if $(STEPS),--num_train_steps=$(STEPS))

test: setup-test
	$(PYTEST) $(PARALLEL) -m "not environment and not thorough"

test-fast: setup-test
	$(PYTEST) $(PARALLEL) -m "not slow and not environment and not thorough"

test-slow: setup-test
	$(PYTEST) $(PARALLEL_CLASSES) -m "environment or thorough"

lint: setup-test
	$(PYTHON_RUN) -m ruff check .
	$(PYTHON_RUN) -m ruff format --check .

layers: setup-test
	.venv/bin/lint-imports

bazel: setup-test
	tools/check_bazel.sh

lock: setup-test
	$(PYTHON_RUN) -m pip install --quiet uv
	$(PYTHON_RUN) -m uv pip compile --quiet \
		requirements.in requirements-test.txt --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" \
		--output-file requirements_lock.txt


bench:
	@echo "Each prints a ratio to a named peer on its last line; see its --help."
	@ls benchmarks/*.py | grep -v __init__ | sed 's|^|  $(PYTHON_RUN) |'

clean:
	rm -rf .cache .demo .pytest_cache .ruff_cache .import_linter_cache build dist
