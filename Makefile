# make demo   sets everything up, trains PPO on CartPole until solved, evaluates it, films it
# make test   sets everything up and runs the tests; make exhaustive tries every setting of every algorithm
# make check  format, lint, types, import contracts, fast tests: what every commit must pass
# make kills  fifty SIGKILLs of a run in training, each followed by a resume
# make memory every algorithm with every core on a memory task
# make learn  learning results over seeds (ROW=name for one row); make bench  speed beside peers

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -c constraints.txt
CI ?=

.PHONY: demo test exhaustive check kills memory learn bench clean

$(VENV)/.made:
	@echo "Setting up $(VENV) …"
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing what the demo needs (about 300 MB) …"
	$(PIP) -e '.[classic,video]'
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing what the tests need (about 1.5 GB) …"
	$(PIP) -e '.[dev]'
	@touch $(VENV)/.demo $@

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not exhaustive' $(ARGS)

exhaustive: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m exhaustive $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow and not wide and not exhaustive' $(ARGS)

kills: $(VENV)/.dev
	SPARRING_KILLS=50 $(BIN)/python -m pytest tests/parity/test_resume.py -k kills

memory: $(VENV)/.dev
	SPARRING_MEMORY=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/learn/test_memory.py

learn: $(VENV)/.dev
	$(BIN)/python benchmarks/learn.py $(if $(ROW),--row '$(ROW)')
	$(BIN)/python benchmarks/report.py

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/bench.py

clean:
	rm -rf $(VENV) .venv-peers build *.egg-info
