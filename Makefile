# Every target creates .venv if it has to. You only need Python 3.11 or newer with pip and venv.

PYTHON ?= python3
JOBS ?= 2

BIN := .venv/bin
READY := .venv/ready
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input

# The CPU build of torch comes without triton, whose interpreter runs the kernel tests.
TRITON := triton==3.6.0; sys_platform == "linux"

# Applies to every call of pip, and to the build environments that pip creates.
export PIP_CONSTRAINT := constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo bench test test-fast test-floor test-newest lint format explorer docs figures docs-serve \
	release-check clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)  ## Create .venv and install everything

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "equipool needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || { echo "Creating .venv"; $(PYTHON) -m venv .venv; }
	@echo "Installing torch (this takes longest)"
	@$(PIP) torch
	@echo "Installing equipool and its tools"
	@$(PIP) --editable ".[dev]"
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP) --no-deps '$(TRITON)'
	@touch $@

demo: $(READY)  ## Five poolings learn three functions of a set for a minute; writes demo-output/
	@$(BIN)/python examples/demo.py --out demo-output

bench: $(READY)  ## Time the layer and its alternatives on the CPU (two minutes)
	@$(BIN)/python benchmarks/timing.py --preset quick --device cpu

# One thread per test process. Tests marked gpu run if there is a GPU.
test test-fast: export OMP_NUM_THREADS ?= 1

test: $(READY)  ## Run all tests
	@skip=$$($(BIN)/python -c 'import torch; print("" if torch.cuda.is_available() else "not gpu")') && \
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "$$skip"

test-fast: $(READY)  ## Run the fast tests only
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal \
		-m "not gpu and not compile and not large and not processes"

# The tests of the core alone, which need no package beside torch.
NOT_CORE := $(patsubst %,tests/test_%.py,\
	compiled_kernels export rooms site)

# $(1): where to install; $(2): which torch.
define test_core
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	@PIP_CONSTRAINT= $(1)/bin/python -m pip install -qq $(2) "numpy<2.4" matplotlib pyarrow safetensors pytest hypothesis
	@PYTHONPATH=src OMP_NUM_THREADS=1 $(1)/bin/python -m pytest -q \
		$(filter-out $(NOT_CORE),$(wildcard tests/test_*.py)) \
		tests/gradients tests/solvers tests/potentials tests/properties \
		-m "not gpu and not compile and not large and not processes"
endef

FLOOR = $$(sed -n 's/^dependencies = \["torch>=\(.*\)"\]/\1/p' pyproject.toml)

test-floor:  ## Run the core's tests on the oldest torch that pyproject.toml allows
	$(call test_core,.venv-floor,"torch==$(FLOOR).*")

test-newest:  ## Run the core's tests on the newest torch
	$(call test_core,.venv-newest,--upgrade torch)

# Without --no-cache, ruff misses that a module moved, which changes the order of imports.
lint: $(READY)  ## Check style and types
	@$(BIN)/ruff check --no-cache
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(READY)  ## Fix style where ruff can
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

explorer: explorer/node_modules  ## Check and build the explorer page (needs node and npm)
	@cd explorer && npm run --silent build

explorer/node_modules: explorer/package-lock.json
	@cd explorer && npm ci --silent
	@touch $@

# Otherwise the theme announces its successor in every build.
docs docs-serve: export NO_MKDOCS_2_WARNING := 1

docs: $(READY)  ## Build the documentation into site/; open site/index.html
	@$(BIN)/mkdocs build --strict  # with --quiet, warnings would not count
	@echo "Open site/index.html (no server or network needed)"

figures: $(READY)  ## Update the documentation's tables and pictures from the records
	@$(BIN)/python docs/figures/build.py

docs-serve: $(READY)  ## Preview the documentation while you write
	@$(BIN)/mkdocs serve

# The README's examples run where only the wheel is installed, away from the checkout.
release-check: $(READY)  ## Build wheel and sdist; run the README's examples with the wheel alone
	@rm -rf dist && $(PIP) hatchling
	@$(BIN)/python -m hatchling build -d dist
	@place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && \
	$(PYTHON) -m venv "$$place/venv" && \
	"$$place/venv/bin/python" -m pip install -qq --no-input torch && \
	"$$place/venv/bin/python" -m pip install -qq --no-input "$$(ls dist/*.whl)[cli,estimators,report]" && \
	mkdir "$$place/tests" && cp tests/python_blocks.py "$$place/tests" && cp README.md "$$place" && \
	cd "$$place/tests" && ../venv/bin/python -c 'from python_blocks import run_page; run_page("README.md")' && \
	../venv/bin/equipool --help > help.txt && \
	echo "dist/ is complete, and the README's examples run with the wheel"

clean:  ## Remove build output and caches, but not .venv
	@rm -rf site dist build demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +
