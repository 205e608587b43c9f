# Every target sets up what it needs: a virtual environment in .venv with exact versions.
# Only Python 3.11 or newer has to be there.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST_WORKERS ?= 2
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast coverage lint format gen compile bench clean

help:  ## Shows this list.
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

setup: $(READY)  ## Creates .venv and installs the pinned dependencies and Fairsched itself.

$(READY): pyproject.toml .ci/constraints.txt .ci/setup
	@.ci/setup $(VENV)
	@touch $@

demo: $(READY)  ## Runs the demo: FCFS against fair_qba on real input (ARGS="--trace FILE").
	@$(BIN)/fairsched demo $(ARGS)

test: $(READY)  ## Runs all tests (ARGS="tests/unit -k name" for some).
	@$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadgroup $(ARGS)

test-fast: $(READY)  ## Runs the unit, property and golden tests.
	@.ci/run fast-tests

coverage: $(READY)  ## Runs all tests in one process and prints what they leave out.
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

lint: $(READY)  ## Checks format, style, layers, types, protos and generated code.
	@.ci/run lint

format: $(READY)  ## Formats Python and proto files.
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/buf format --write proto

gen: $(READY)  ## Writes the generated code in clients/python/fairsched/v1 again.
	@.ci/gen

compile: $(READY)  ## Compiles hot modules in place, after every change again (needs a C compiler).
	@$(BIN)/python .ci/compile.py

bench: $(READY)  ## Runs the benchmark suite (ARGS="--quick", "--list", or names).
	@$(BIN)/python -m tests.bench $(ARGS)

clean:  ## Removes caches, environments and what was compiled; keeps data.
	rm -f fairsched*__mypyc.*.so scheduler_service/*/*.so
	rm -rf $(VENV) .venv-gen .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
