# make demo · make test · make lint · make bench · make docs · make trials
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SOURCES := pyproject.toml constraints.txt

# Real data laid beside the checkout is used where it is; else the platform's cache folder.
ASSAY_DATA ?= $(realpath ../shared/data)
ifneq ($(ASSAY_DATA),)
export ASSAY_DATA
endif
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint bench docs trials schema clean

demo: $(VENV)/.demo
	$(BIN)/assay tour

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal # one thread a worker: the workers share the cores

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

trials: $(VENV)/.dev  # real models, a browser, minutes of computing
	$(BIN)/assay data get demo-lm demo-encoder
	$(BIN)/pytest -m slow

bench: $(VENV)/.dev
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict --quiet

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Assay needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(SOURCES) | $(VENV)/bin/pip
	$(BIN)/pip install --quiet -c constraints.txt -e '.[evaluate]'
	touch $@

$(VENV)/.dev: $(SOURCES) | $(VENV)/bin/pip
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test,lint,docs]'
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
