# likewise: every target makes its own set-up in .venv. Needs only Python ≥ 3.11, make and pip.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
TORCH  := $(shell sed -n 's/^ *"\(torch[<>=][^"]*\)".*/\1/p' pyproject.toml)
JOBS   ?= 2
# the coverage of the fast tests may rise, never fall
FLOOR  ?= 95

# one thread a process: the tests already run in $(JOBS) processes
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-lowest test-slow test-browser fuzz examples check bench docs clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/with-demo  ## install, then see what likewise does: writes demo/report.html
	$(BIN)/likewise demo

# COVERAGE=1 shows what the tests reach, and fails below the floor
measured := $(if $(COVERAGE),--cov --cov-report=term:skip-covered --cov-fail-under=$(FLOOR))

test: $(VENV)/with-test  ## the fast tests, in random order (under four minutes on two cores); COVERAGE=1 measures what they reach
	$(BIN)/python -m pytest -n $(JOBS) $(measured)

test-lowest: $(VENV)/with-test  ## the fast tests with the oldest versions that pyproject.toml admits
	$(BIN)/python tools/lowest.py | $(PIP) install --quiet -r /dev/stdin
	$(BIN)/python -m pytest -n $(JOBS)

test-slow: $(VENV)/with-test  ## the tests that are too slow for every day
	$(BIN)/python -m pytest -n $(JOBS) --slow -m slow

fuzz: $(VENV)/with-test  ## mutated files for every reader, FILES=10000 by default; what it finds is named by a number that repeats it
	$(BIN)/python benchmarks/fuzz.py --files $(or $(FILES),10000) --name ''

test-browser: $(VENV)/with-browser  ## the studio in headless Chromium, as a person uses it (needs a chromium on the PATH)
	$(BIN)/python -m pytest --browser -m browser tests/browser || \
	$(BIN)/python -m pytest --browser -m browser --last-failed tests/browser  # a busy machine: once more what failed

examples: $(VENV)/with-demo  ## run every example
	@set -e; for example in $(sort $(wildcard examples/*.py)); do echo "== $$example"; $(BIN)/python "$$example"; done

check: $(VENV)/with-check  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/with-bench  ## measure speed and quality anew, then fill the tables of README and docs
	$(PIP) install --quiet --no-deps 'aeon>=1.0'  # for its JapaneseVowels files only; its pins would hold numba back
	for what in transport threads start profile memory spectra images diva embed 'search index' 'search shortlist' 'search stages'; do $(BIN)/python benchmarks/speed.py $$what || exit 1; done
	for table in suite settings; do $(BIN)/likewise papers mlml $$table --out docs/results/mlml-$$table.json || exit 1; done
	for table in flow matching; do $(BIN)/likewise papers life $$table --out docs/results/life-$$table.json || exit 1; done
	$(BIN)/python docs/tables.py

docs: $(VENV)/with-docs  ## the documentation, warnings are errors: docs/_build/html/index.html
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean:  ## remove everything that make has made
	rm -rf $(VENV) docs/_build docs/api demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# ---------------------------------------------------------------------------------------------------------- set-up

extras-demo  := video,studio
extras-test  := test
extras-browser := browser
extras-check := check,test
extras-docs  := docs
extras-bench := bench,video

$(VENV)/with-%: pyproject.toml | $(VENV)/with-torch
	$(PIP) install --quiet --editable '.[$(extras-$*)]'
	@$(no-cuda)
	@touch $@

# torch first, by the range that pyproject.toml gives.
.PRECIOUS: $(VENV)/with-torch
$(VENV)/with-torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "likewise needs Python 3.11 or newer: make PYTHON=python3.11 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet '$(TORCH)'
	@$(no-cuda)
	@touch $@

# Gigabytes of CUDA are a choice, not an accident: CI refuses them, a person is told.
no-cuda = if $(PIP) list --format=freeze | grep -i '^nvidia-' >/dev/null; then \
	if [ -n "$$CI" ]; then echo "CUDA packages got into $(VENV): check the torch range in pyproject.toml"; exit 1; fi; \
	echo "note: this torch came with CUDA; for a small CPU-only set-up give pip PyTorch's CPU index (PIP_INDEX_URL) and start again"; fi
