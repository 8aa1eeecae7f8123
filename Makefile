# The two commands of the README. Each works on a fresh clone with nothing but Python 3.10+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types format clean

demo: $(STAMP)
	$(BIN)/vmg demo

# Two workers with one thread each: more threads than cores would make the tests several times slower.
test: export OMP_NUM_THREADS = 1
test: lint types
	$(BIN)/python -m pytest -n 2
	VMG_NATIVE=0 $(BIN)/python -m pytest -n 2 tests/test_conditional.py tests/test_priors.py tests/nn/test_contract.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[app,dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
