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

.PHONY: help run test test-all test-spark35 test-airflow lint format bench docs clean
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

test-all: test test-spark35 ## Run the tests, and those that take longer.
	$(PYTEST) -n 2 --dist loadgroup -m "slow and not spark" -rs
	$(PYTEST) -m "slow and spark" -rs

# Beside the newest pyspark, not in its place: a folder that goes before it on the path.
$(VENV)/spark35: pyproject.toml | $(VENV)/.test
	@rm -rf $@ $@.part
	$(PIP) --target $@.part --no-deps 'pyspark>=3.5,<3.6' 'py4j==0.10.9.7'
	@mv $@.part $@

test-spark35: $(VENV)/spark35 ## Run the engine's tests on the newest Spark 3.5.
	PYTHONPATH=$(VENV)/spark35 $(PYTEST) -m spark tests/engines -rs

# Airflow pins much of what it needs; it has an environment of its own.
$(VENV)-airflow/.airflow: | $(BIN)/python
	$(PYTHON) -m venv $(VENV)-airflow
	$(VENV)-airflow/bin/pip install --quiet --disable-pip-version-check 'apache-airflow>=3.3,<4'
	@touch $@

test-airflow: $(VENV)/.run $(VENV)-airflow/.airflow ## Run deploy/airflow_dag.py by a real Airflow.
	$(VENV)-airflow/bin/python -m tests.deploy.airflow_run $(abspath $(BIN))/coverage-job

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
	$(BIN)/python -m tests.file_reference

clean: ## Remove what these commands made.
	rm -rf $(VENV) $(VENV)-airflow $(DEMO) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
