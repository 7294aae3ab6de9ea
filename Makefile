# One command per chore. `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= demo
# torch is pinned for development only; see constraints.txt.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest
FAST := not slow and not spark and not browser

.DEFAULT_GOAL := help

.PHONY: help run test test-all lint format bench docs clean
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "coverage_job needs Python 3.10 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A stamp per set of packages, made anew when the requirements change.
$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[spark,demo]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[spark,drift,probe,s3,demo,test,dev]'
	@touch $@ $(VENV)/.run

run: $(VENV)/.run ## Write the demo, run the main job on it, say where the report is.
	@rm -rf $(DEMO)
	@$(BIN)/coverage-job demo $(DEMO)
	@$(BIN)/coverage-job run $(DEMO)/job.yaml

test: $(VENV)/.test ## Run the tests (minutes).
	$(PYTEST) -n 2 --dist loadfile -m "$(FAST)"
	$(PYTEST) -m "(spark or browser) and not slow" -rs

test-all: test ## Run the tests, and those that take longer.
	$(PYTEST) -n 2 --dist loadfile -m "slow and not spark" -rs
	$(PYTEST) -m "slow and spark" -rs

lint: $(VENV)/.test ## Check style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.test ## Put the code in the house style.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.test ## Measure counting, rendering and drift against their references.
	$(PIP) -e '.[bench]'
	$(BIN)/python -m tests.benchmarks

docs: $(VENV)/.test ## Write the pages that are made from code.
	$(BIN)/python -m tests.job_file_reference

clean: ## Remove what these commands made.
	rm -rf $(VENV) $(DEMO) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
