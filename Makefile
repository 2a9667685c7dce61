# The two commands of the README. Each sets up what it needs in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Which tests: a mark expression, and files, folders or options of pytest.
SELECT ?= not system and not nightly
TESTS ?=
# Run in a folder without the files of the package, so that it checks the installed ones.
MYPY = $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(abspath $(VENV))/mypy
# Small operations in two processes: more threads only wait for each other.
ONE_THREAD := TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 OMP_NUM_THREADS=1

# A small network that learns in a minute, with a last stage of 2x2 pixels that it hardly needs.
STUDY := --depth 22 --stages 5 --width 8 --gain 0.1 --recipe one_cycle --learning-rate 0.1 \
	--epochs 3 --batch-size 32 --train-size 10000 --validation 500 --test-size 1200

.PHONY: study test style suite format benchmarks docs notebooks release clean

study: $(VENV)/package
	$(BIN)/tfresidual study $(STUDY)

test: style suite

style: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd tests/typing && $(MYPY) --package tfresidual
	cd tests/typing && $(MYPY) --strict --follow-imports silent passes.py

suite: $(VENV)/test
	$(ONE_THREAD) $(BIN)/pytest -n 2 --dist worksteal -m '$(SELECT)' $(TESTS)

format: $(VENV)/test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, into site/; every warning is an error. The theme's advertisement is not a warning.
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The pages of the tutorial as notebooks that have not been run, into notebooks/.
notebooks: $(VENV)/docs
	$(BIN)/python docs/hooks/tutorials.py notebooks

benchmarks: $(VENV)/benchmarks
	$(BIN)/python benchmarks/run.py

# Version, changelog, sdist, wheel and checks; uploads nothing: make release VERSION=0.2.0
release:
	INTERPRETERS="$(PYTHON)" $(PYTHON) .ci/release "$(VERSION)"

# The package is installed as its users have it: tests do not run against the files here. The
# folder build/ would carry over modules that are gone.
SOURCES := setup.cfg setup.py pyproject.toml tfresidual_cli.py $(shell find tfresidual callbacks -name '*.py' -o -name '*.jinja')

$(VENV)/package: $(SOURCES)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	rm -rf build
	# Python compiles the modules that are imported, a tenth of them, when they are.
	$(BIN)/pip install --quiet --no-compile .
	touch $@

$(VENV)/test: $(VENV)/package
	rm -rf build
	$(BIN)/pip install --quiet ".[test]"
	touch $@

$(VENV)/jax $(VENV)/backends: $(VENV)/%: $(VENV)/test
	rm -rf build
	$(BIN)/pip install --quiet ".[$*]"
	touch $@

$(VENV)/docs: $(VENV)/package
	rm -rf build
	$(BIN)/pip install --quiet ".[docs]"
	touch $@

$(VENV)/benchmarks: $(VENV)/package
	rm -rf build
	$(BIN)/pip install --quiet ".[benchmarks]"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
