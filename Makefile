# `make demo` and `make test` do all set-up themselves; they need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE # tests start dozens of processes, which would each compile the package again

.PHONY: help demo test e2e package faults ray lint format docs concepts clean

help:  ## show this list
	@grep -E '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9]+):.*## /\1\t/' | expand -t 12

demo: $(VENV)/.core  ## compare FedAvg and FedBM on digits; ends with a table and runs/report.html
	$(BIN)/fedbm demo
	@echo "To type fedbm in this shell: . $(BIN)/activate"

test: $(VENV)/.dev  ## run every test, with coverage
	$(BIN)/python -m slipcover --json --out .coverage.json -m pytest -n auto --dist worksteal
	$(BIN)/python -m slipcover --merge .coverage.json --out .coverage.json --skip-covered --fail-under 90

e2e: $(VENV)/.dev  ## deploy FedBM here over TLS with three nodes, and compare the model with that of one process
	$(BIN)/python tests/deployed/alone.py $(BIN)/python -m pytest -m e2e tests/deployed

package: $(VENV)/.dev  ## build the wheel, install it in an empty environment and run a comparison there
	$(BIN)/python -m pytest -m package tests/test_package.py

faults: $(VENV)/.dev  ## a deployment under faults: killed processes, unregistered nodes, wrong messages (an hour)
	$(BIN)/python -m pytest -m faults tests/deployed

ray: $(VENV)/.dev  ## runs on a Ray cluster of this machine; a minute
	$(PIP) install -c constraints.txt -e '.[dev,ray]'
	$(BIN)/python -m pytest -m ray tests/runs/test_ray_cluster.py

lint: $(VENV)/.dev  ## ruff, mypy --strict, and words that are no longer used
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/check_words.py

format: $(VENV)/.dev  ## let ruff tidy the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs  ## build the documentation site in build/site, warnings as errors; it runs the notebook
	$(BIN)/sphinx-build --fail-on-warning --fresh-env --conf-dir docs . build/site

concepts: $(VENV)/.dev  ## rebuild the shipped embeddings: make concepts MODEL=folder-of-all-MiniLM-L6-v2
	$(BIN)/python tools/bundle_concepts.py "$(MODEL)"

clean:  ## remove the virtual environment and caches (runs are kept)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage.json

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.core

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e '.[docs]'
	touch $@ $(VENV)/.core

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedbm needs Python 3.11 or newer; run: make PYTHON=python3.12 …"; exit 2; }
	$(PYTHON) -m venv $(VENV)
