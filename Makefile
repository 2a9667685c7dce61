# The two commands of the README. Each sets up what it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: study test test-slow benchmarks clean

study: .venv/package
	$(BIN)/tfresidual study

test: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest

test-slow: .venv/test
	$(BIN)/pytest -m slow

benchmarks: .venv/test
	$(BIN)/python benchmarks/run.py

# Tests run against the package as it is installed, not against the files here.
.venv/package: setup.cfg pyproject.toml tfresidual_cli.py $(shell find tfresidual callbacks -type f -not -name '*.pyc')
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet .
	$(BIN)/pip install --quiet --force-reinstall --no-deps .
	touch $@

.venv/test: .venv/package
	$(BIN)/pip install --quiet ".[test]"
	touch $@

clean:
	rm -rf .venv build *.egg-info
