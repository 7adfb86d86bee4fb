# make run    install what is needed, get the default model, serve it, and watch it answer
# make test   install what the tests need too, and run every one
# make kernels-table   compile the GPU kernels for every target and write docs/kernels.md; no GPU is needed
# make chaos  200 streams through 20 killed schedulers, take-overs, swaps and a killed executor, with a report
# make fuzz   a minute of coverage-guided fuzzing of what reads bytes (needs atheris, which it installs)
#
# PYTHON       the Python that makes the virtual environment, 3.11 or newer (default: python3)
# TORCH_INDEX  one more package index; with https://download.pytorch.org/whl/cpu, Linux machines get a torch without
#              the CUDA libraries, which is gigabytes smaller (default: none)
# MODEL        what to serve: default, a name of `citybus model list`, or a folder (default: default)
# SERVE_ARGS   more options of `citybus serve` (default: none)
# PYTEST_ARGS  options of pytest (default: -n 2)

PYTHON ?= python3
TORCH_INDEX ?=
MODEL ?= default
SERVE_ARGS ?=
PYTEST_ARGS ?= -n 2

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check -c deploy/constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
PINS := pyproject.toml deploy/constraints.txt setup.py $(wildcard kernels/cpu/*.cpp kernels/cpu/*.h)
NEED_MB := 2500

.PHONY: run test chaos fuzz kernels-table lint protos compose-test clean help

run: $(VENV)/.installed-run
	@if [ "$(MODEL)" = default ]; then $(BIN)/citybus model add default >/dev/null; fi
	@exec $(BIN)/citybus serve --model "$(MODEL)" $(SERVE_ARGS)

test: $(VENV)/.installed-dev
	@$(BIN)/citybus model add default >/dev/null
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

chaos: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.e2e.chaos

fuzz: $(VENV)/.installed-dev
	$(PIP_INSTALL) atheris==3.0.0
	$(BIN)/python -m tests.fuzz.guided -max_total_time=60 -max_len=4096

kernels-table: $(VENV)/.installed-dev
	TRITON_INTERPRET=0 $(BIN)/python -m bench.kernel_table

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/buf lint protos
	$(BIN)/python protos/generate.py --check
	$(BIN)/python -m pytest -q tests/test_architecture.py

compose-test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -v --timeout=2400 tests/compose/lifecycle.py

protos: $(VENV)/.installed-dev
	$(BIN)/python protos/generate.py

clean:
	rm -rf $(VENV) build dist *.egg-info kernels/cpu/_native* .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "make: $(PYTHON) is not Python 3.11 or newer: install one and name it, as in 'make run PYTHON=python3.12'" >&2; \
		exit 1; }
	@free=$$(df -Pk . | awk 'NR == 2 { print int($$4 / 1024) }'); [ "$$free" -ge $(NEED_MB) ] || { \
		echo "make: the disk of $(CURDIR) has $$free MB free and $(NEED_MB) MB are needed at least: make room" >&2; \
		exit 1; }
	@echo "making the virtual environment $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV) || { \
		echo "make: $(PYTHON) cannot make a virtual environment; on Debian or Ubuntu, 'apt install python3-venv' helps" >&2; \
		exit 1; }
	@touch $@

$(VENV)/.installed-run: $(VENV)/.made $(PINS)
	@echo "installing what 'make run' needs; $(TAKES)"
	@$(PIP_INSTALL) -e '.[scheduler,executor,convert]' || { $(INSTALL_FAILED); }
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.made $(PINS)
	@echo "installing what 'make test' needs; $(TAKES)"
	@$(PIP_INSTALL) -e '.[dev]' || { $(INSTALL_FAILED); }
	@touch $(VENV)/.installed-run $@

TAKES := where there is a C++ compiler, kernels/cpu is compiled at the end, which takes a minute or so

INSTALL_FAILED = free=$$(df -Pk . | awk 'NR == 2 { print int($$4 / 1024) }'); \
	echo "make: pip could not install, with $$free MB free here; its last ERROR above says why. Where no space is left:" \
		"make room, or set TORCH_INDEX (make help)" >&2; exit 1
