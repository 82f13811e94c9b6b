# Two commands do everything: `make demo` and `make test`. Both go through `make setup`, which reuses what is there.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup setup-dev demo test lint types imports clean

setup: $(VENV)/.installed
setup-dev: $(VENV)/.installed-dev

# A failed venv is taken away again: half of one would pass for a whole one next time.
$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "arcvq needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make setup PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing arcvq into $(VENV) (torch is large: a few minutes the first time)"
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/arcvq demo --out runs/demo

test: setup-dev
	$(BIN)/python -m pytest -n 2

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-dev
	$(BIN)/mypy

imports: setup-dev
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist runs
