# `make` lists the targets. Only Python 3.11 to 3.13 must be installed.

PYTHON_RUN := .venv/bin/python
PYTEST := TF_CPP_MIN_LOG_LEVEL=2 $(PYTHON_RUN) -m pytest -q
# Two workers for two cores; each repeats a test file's set-up.
PARALLEL ?= -n 2 --dist worksteal
# One worker for each class: its set-up takes minutes. Three, as they often wait
# for other processes.
PARALLEL_CLASSES ?= -n 3 --dist loadscope --no-loadscope-reorder
STEPS ?=
# Material for MkDocs advertises in the log of each build.
MKDOCS := NO_MKDOCS_2_WARNING=1 .cache/docs-venv/bin/python -m mkdocs

.PHONY: help setup setup-test demo test test-fast test-slow lint claims layers bazel \
	docs docs-serve docs-pictures docs-test notebooks lock bench release clean

help:
	@echo "make setup      makes .venv with the runtime dependencies"
	@echo "make demo       trains a tiny BERT and a classifier on text of this machine and serves it (STEPS=50: short)"
	@echo "make test       the test suite"
	@echo "make test-fast  the tests that take seconds"
	@echo "make test-slow  tests that take long or make their own environments"
	@echo "make lint       ruff: rules and formatting; the form of prose and names"
	@echo "make claims     recomputes the numbers of the README and the results"
	@echo "make layers     import rules between the folders"
	@echo "make bazel      the BUILD file (needs Debian's bazel-bootstrap)"
	@echo "make docs       the documentation site, in .site/"
	@echo "make docs-pictures draws the documentation's figures and takes its screenshots"
	@echo "make docs-test executes the code blocks of the documentation (PAGES=README.md: some)"
	@echo "make notebooks executes the notebooks (NOTEBOOKS=classify: one)"
	@echo "make docs-serve shows it on http://localhost:8000 and follows changes"
	@echo "make bench      lists the benchmarks"
	@echo "make lock       writes requirements_lock.txt"
	@echo "make release VERSION=0.2.0  changelog, wheel and sdist, both tried"
	@echo "make clean      removes caches and the demo's output, but not .venv"

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
	$(PYTHON_RUN) -m tools.check_prose

# Numbers of the pages against benchmarks/results and tests/golden.
claims: setup-test
	$(PYTHON_RUN) -m tools.check_claims

layers: setup-test
	.venv/bin/lint-imports

bazel: setup-test
	tools/check_bazel.sh

docs:
	@tools/setup.sh docs
	$(MKDOCS) build

# Needs Debian's chromium and chromium-driver.
docs-pictures: setup-test docs
	$(PYTHON_RUN) -m tools.docs_figures
	$(PYTHON_RUN) -m tools.docs_plots
	$(PYTHON_RUN) benchmarks/small_pretraining.py --rows=curves --report --picture=docs/images/pretraining_curves.png
	$(PYTHON_RUN) -m tools.docs_pictures

# Pages to execute; all by default.
PAGES ?=

docs-test: setup-test
	TF_CPP_MIN_LOG_LEVEL=2 $(PYTHON_RUN) -m tools.docs_run $(PAGES)

# Notebooks to execute; all by default.
NOTEBOOKS ?=

notebooks: setup-test
	@tools/setup.sh docs
	.cache/docs-venv/bin/python -m tools.notebooks $(NOTEBOOKS)

docs-serve:
	@tools/setup.sh docs
	$(MKDOCS) serve --no-strict

lock: setup-test
	$(PYTHON_RUN) -m uv pip compile --quiet \
		requirements.in requirements-test.txt --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" \
		--output-file requirements_lock.txt


bench:
	@echo "Most print a ratio to a named peer on their last line; see their --help."
	@ls benchmarks/*.py | grep -v __init__ | sed 's|^|  $(PYTHON_RUN) |'

release: setup
	$(PYTHON_RUN) tools/release.py $(or $(VERSION),$(shell $(PYTHON_RUN) -c \
		"import bert_tf; print(bert_tf.__version__)"))

clean:
	rm -rf .cache .demo .site .pytest_cache .ruff_cache .import_linter_cache build dist
