# Each target does its own set-up: a virtual environment in the clone, with pinned versions.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test test-all readme cost gpu types models loading-cost check

demo: $(READY)  ## the main job on the bundled model and photographs, no download
	$(BIN)/normprobe demo

test: $(READY)  ## the fast tests, some six minutes on two cores
	$(BIN)/pytest --numprocesses 2

test-all: test  ## the slow tests too
	$(BIN)/pytest --numprocesses 2 -m "slow and not gpu and not network"

readme: $(READY)  ## refresh the table and the figure in the README
	$(BIN)/python .ci/readme.py

cost: $(READY)  ## refresh the table of what probing costs in the README
	$(BIN)/python .ci/probe_cost.py

gpu: $(READY)  ## where there is a CUDA device: its tests, what probing costs there, a whole run
	$(BIN)/python .ci/gpu.py

types: $(READY)  ## which checks pass for every model type, as a table
	$(BIN)/python .ci/types_table.py

models: $(READY)  ## refresh the table of supported model types
	$(BIN)/python .ci/supported_models.py

loading-cost: $(READY)  ## bytes, memory and seconds of each command's load, as a table
	$(BIN)/python .ci/loading_cost.py table

check: $(READY)  ## lint, format, types, import layers, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

$(READY): pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt --editable '.[dev]'
	touch $@
