# Every target installs what it needs into .venv first, once. Needed beforehand: Python 3.11+, make.
#
#   make test PYTHON=python3.12      another interpreter (read when .venv is created)
#   make test ARGS="-k geometry"     further arguments for pytest
#   make test JOBS=4                 number of parallel test processes
#   make install PIPFLAGS=           let pip say everything it does

PYTHON   ?= python3
JOBS     ?= auto
ARGS     ?=
PIPFLAGS ?= -qq
MINUTES  ?= 10

BIN   := .venv/bin
STAMP := .venv/.installed-dev
PIP   := $(BIN)/python -m pip --disable-pip-version-check install $(PIPFLAGS) -c constraints.txt
say    = @printf '\n── %s\n'

# Pictures go to files: no display is needed.
export MPLBACKEND ?= Agg

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test lint check-types check-rules check-imports bench stress docs picture \
  clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## Create .venv with the pinned versions (every other target does this by itself)

# The stamp is written last, so an interrupted installation is taken up again by the next call.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "legato needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(say) 'Creating .venv'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	$(say) 'Installing torch (the largest part; minutes on a slow line)'
	@$(PIP) torch hatchling
	$(say) 'Installing legato and its development tools'
	@$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

demo: $(STAMP) ## README's program, toy and segmentation in a few minutes; prints where the pictures are
	@$(BIN)/python examples/demo.py

test: lint ## Lint, then run all tests
	$(say) 'pytest'
	@$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal $(ARGS)

lint: $(STAMP) ## Check formatting, rules, types, the direction of imports, what examples import
	@$(MAKE) --no-print-directory -j 2 -O check-types check-rules check-imports

check-types:
	$(say) 'mypy'
	@$(BIN)/mypy

check-rules:
	$(say) 'ruff format, ruff check'
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

check-imports:
	$(say) 'import-linter, public imports of examples and experiments'
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest -q -p no:cacheprovider tests/test_public_imports.py

bench: $(STAMP) ## Time the solver loop, then race the peers (BENCH=--fresh: all rows again)
	@$(BIN)/python benchmarks/loop.py
	@$(BIN)/python benchmarks/peers/race.py --all $(BENCH)
	@$(BIN)/python benchmarks/peers/report.py

stress: $(STAMP) ## Long tests in bounded time (MINUTES=10); counts go to out/stress.json
	@$(BIN)/python stress/run.py --minutes $(MINUTES) $(ARGS)

docs: $(STAMP) ## Build the site: out/docs/html; changed pages of the gallery run (DOCS=--fresh: all)
	@$(BIN)/python docs/build.py $(DOCS)

picture: $(STAMP) ## Regenerate the pictures of README and start page, docs/{readme,start}.png
	@$(BIN)/python examples/readme.py docs/readme.png
	@$(BIN)/python examples/start.py docs/start.png

clean: ## Remove .venv, build outputs and caches; results and other files of yours stay
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find $(wildcard src tests stress examples experiments benchmarks) \
	  -type d \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +
