# Every target works as the first command on a fresh machine: it makes .venv and installs what it needs.

RIGHT_VERSION := import sys; sys.exit(sys.version_info < (3, 11))
# Those that are tested come first, then newer ones. The first that runs: version managers put names
# on the path that lead nowhere.
PYTHONS := python3.12 python3.11 python3 python3.13 python3.14
PYTHON ?= $(shell for p in $(PYTHONS); do $$p -c '$(RIGHT_VERSION)' 2>/dev/null && echo $$p && break; done)
VENV := .venv
PY := $(VENV)/bin/python
HEADWAY := $(VENV)/bin/headway
INSTALL := $(PY) -m pip install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test browser lint web check test-processors test-slow test-gpu bench docs clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 12

setup: $(VENV)/installed ## make .venv and install headway with everything the tests need

demo: setup ## train a German-English translator for two minutes, try it and the shipped one
	$(PY) examples/demo.py

# Tiny tests gain nothing from threads: workers of one thread each beat one with all of them. Compiled
# code is kept, whatever is set outside: every worker and every process that a test starts would
# compile all of it again, ten seconds each time for the tests.
TESTS := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n auto --maxprocesses 4 --dist worksteal

# Types are checked meanwhile, and what was found there is said last.
test: lint browser ## check, and the fast tests
	@found=$$(mktemp); $(PY) -m mypy >"$$found" 2>&1 & types=$$!; \
	echo "$(TESTS)"; $(TESTS); tests=$$?; wait $$types; types=$$?; \
	echo "$(PY) -m mypy"; cat "$$found"; rm "$$found"; [ $$tests = 0 ] && [ $$types = 0 ]

# Torch has code for each of these, whose sums and random numbers differ in their last bits. Taken are
# those that this processor has; other systems than Linux do not say.
CPUINFO := /proc/cpuinfo
PROCESSORS = default $(foreach kind,avx2 avx512,$(shell grep -qsE '\<$(kind)f?\>' $(CPUINFO) && echo $(kind)))
test-processors: setup browser ## the fast tests as on an old x86 processor, and on newer kinds where this one can
	@for kind in $(PROCESSORS); do \
		echo "ATEN_CPU_CAPABILITY=$$kind $(TESTS)"; ATEN_CPU_CAPABILITY=$$kind $(TESTS) || failed="$$failed $$kind"; \
	done; [ -z "$$failed" ] || { echo "Tests failed with ATEN_CPU_CAPABILITY:$$failed" >&2; exit 1; }

# Debian's package. Without a browser the tests of the page are skipped, and the summary says so.
browser: ## find chromium for the tests of the page, or install it where apt-get may
	@for name in $$CHROMIUM chromium chromium-browser google-chrome chrome; do \
		command -v "$$name" >/dev/null && exit 0; done; \
	root=""; [ "$$(id -u)" = 0 ] || root="sudo -n"; \
	if command -v apt-get >/dev/null && $$root true 2>/dev/null; then \
		echo "No chromium here: installing Debian's with apt-get for the tests of the page"; \
		export DEBIAN_FRONTEND=noninteractive; \
		$$root apt-get update -qq -o Acquire::http::Timeout=20 -o Acquire::Retries=1; \
		$$root apt-get install -qq -y --no-install-recommends chromium fonts-noto-core >/dev/null \
			&& command -v chromium >/dev/null && exit 0; \
	fi; \
	echo "!!! No chromium, and it could not be installed: THE BROWSER TESTS WILL BE SKIPPED." \
		"Install it, or say where one is: make test CHROMIUM=/path/to/chromium" >&2

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) docs/wording.py
	@if $(MAKE) --silent node_modules/installed 2>/dev/null; then $(MAKE) --no-print-directory web; \
		else echo "!!! npm is missing or cannot install Prettier and tsc: THE JAVASCRIPT OF PAGES IS NOT" \
		"CHECKED. Install Node.js, then try: make web" >&2; fi

# Panels and the page of `headway serve` have a project each, which uses the types of the core.
NPM := npm
WEB := src/headway/web
web: node_modules/installed ## check the JavaScript of pages: format (Prettier) and types (tsc); needs Node.js
	node_modules/.bin/prettier --check --log-level warn "$(WEB)/**/*.{js,ts,css,json}"
	node_modules/.bin/tsc --build $(WEB)/panels $(WEB)/serve

node_modules/installed: package.json package-lock.json
	@command -v $(NPM) >/dev/null || { echo "make web needs Node.js 18 or newer, with npm." >&2; exit 1; }
	@echo "Installing Prettier and tsc into node_modules"
	@$(NPM) ci --loglevel error --fetch-retries=1 --fetch-retry-mintimeout=1000 >/dev/null
	@touch $@

check: lint ## lint, formatting, wording, counts of the structure, and types
	$(PY) docs/structure.py
	$(PY) -m mypy

test-slow: setup ## the slow tests
	$(PY) -m pytest -m 'slow and not gpu'

test-gpu: setup ## the tests that need a CUDA device
	$(PY) -m pytest -m gpu

bench: setup ## measure speed on this machine
	$(PY) -m benchmarks.run

docs: setup ## build the documentation into site/; a broken link fails
	$(PY) docs/reference.py
	$(VENV)/bin/zensical build --clean --strict

clean: ## remove caches and what was built; keep .venv
	rm -rf build dist site .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# The stamps are newer than what they were installed from, so a second run costs nothing.
$(VENV)/installed: pyproject.toml constraints.txt
	@"$(PYTHON)" -c '$(RIGHT_VERSION)' 2>/dev/null || { echo "headway needs Python 3.11 or newer." \
		"Tried: $(or $(PYTHON),$(PYTHONS)). Try: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Installing into $(VENV) (a few minutes the first time)"
	@# Some distributions ship venv without pip; the pip outside then installs the one inside.
	@"$(PYTHON)" -m venv $(VENV) >/dev/null \
		|| { "$(PYTHON)" -m venv --without-pip $(VENV) && "$(PYTHON)" -m pip --python $(PY) install --quiet pip; }
	@$(INSTALL) --editable '.[test,dev]'
	@touch $@
