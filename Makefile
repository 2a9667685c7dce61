# The two commands of the README. Each sets up what it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin
# Run in a folder without the files of the package, so that it checks the installed ones.
MYPY = $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.venv/mypy
# Small operations in two processes: more threads only wait for each other.
ONE_THREAD := TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 OMP_NUM_THREADS=1

.PHONY: study test test-system test-backends test-slow format benchmarks docs notebooks clean

study: .venv/package
	$(BIN)/tfresidual study

test: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd tests/typing && $(MYPY) --package tfresidual
	cd tests/typing && $(MYPY) --strict --follow-imports silent passes.py
	$(ONE_THREAD) $(BIN)/pytest -n 2 --dist loadfile

test-system: .venv/test
	$(ONE_THREAD) $(BIN)/pytest -n 2 --dist loadfile -m 'system and not slow'

test-backends: .venv/backends
	$(ONE_THREAD) $(BIN)/pytest -n 2 --dist loadfile -m 'backends and not slow'

test-slow: .venv/test
	$(BIN)/pytest -m slow

format: .venv/test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, into site/; every warning is an error. The theme's advertisement is not a warning.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The pages of the tutorial as notebooks that have not been run, into notebooks/.
notebooks: .venv/docs
	$(BIN)/python docs/hooks/tutorials.py notebooks

benchmarks: .venv/benchmarks
	$(BIN)/python benchmarks/run.py

# The package is installed as its users have it: tests do not run against the files here. The
# folder build/ would carry over modules that are gone.
SOURCES := setup.cfg setup.py pyproject.toml tfresidual_cli.py $(shell find tfresidual callbacks -name '*.py' -o -name '*.jinja')

.venv/package: $(SOURCES)
	test -d .venv || $(PYTHON) -m venv .venv
	rm -rf build
	$(BIN)/pip install --quiet .
	touch $@

.venv/test: .venv/package
	rm -rf build
	$(BIN)/pip install --quiet ".[test]"
	touch $@

.venv/backends: .venv/test
	rm -rf build
	$(BIN)/pip install --quiet ".[backends]"
	touch $@

.venv/docs: .venv/package
	rm -rf build
	$(BIN)/pip install --quiet ".[docs]"
	touch $@

.venv/benchmarks: .venv/package
	rm -rf build
	$(BIN)/pip install --quiet ".[benchmarks]"
	touch $@

clean:
	rm -rf .venv build *.egg-info
