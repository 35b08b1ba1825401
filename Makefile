# The life of a token. `make book` builds the book, `make test` checks it; `make help` lists the rest.

PYTHON ?= python3
# What was installed before is what is meant, until another is named.
TORCH  ?= $(or $(patsubst .venv/.stamp-%,%,$(firstword $(wildcard .venv/.stamp-*))),default)
PORT   ?= 8000

VENV := .venv
BIN  := $(VENV)/bin
PY   := $(BIN)/python
STAMP := $(VENV)/.stamp-$(TORCH)
LOCKS := requirements.lock requirements-torch.lock requirements-nodeps.lock pyproject.toml
# PyTorch's own index of small CPU builds: asked only for TORCH=cpu. Where it cannot be reached, pip
# warns and takes the ordinary release.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(PY) -m pip --disable-pip-version-check

.PHONY: help book chapter test check notebooks serve pdf sweep bench gpu record format lock clean distclean install

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Settings: PYTHON=python3.12  TORCH=default|cpu|existing  N=01 (chapter)  PORT=8000 (serve)  FILE=my.toml (sweep)"

book: install  ## execute what changed, build the site, say where it is
	@$(PY) -m tokenlife.publish book

chapter: install  ## execute one chapter and build the site: make chapter N=01
	@test -n "$(N)" || { echo "make: name the chapter, like: make chapter N=01" >&2; exit 2; }
	@$(PY) -m tokenlife.publish chapter $(N)

test: install  ## lint, unit tests, doctests, and the tests of the built book
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(PY) -m pytest

check: install  ## lint, the book's structure, the library's size: seconds
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(PY) -m tokenlife.publish check

notebooks: install  ## write the .ipynb pair of each chapter, to open in JupyterLab or papermill
	@$(PY) -m tokenlife.publish notebooks

pdf: book  ## the whole book as one PDF, with static charts
	@$(PY) -m tokenlife.publish pdf

sweep: install  ## run a chapter for many sets of parameters: make sweep FILE=my.toml
	@test -n "$(FILE)" || { echo "make: name the sweep, like: make sweep FILE=my.toml" >&2; exit 2; }
	@$(PY) -m tokenlife.publish sweep $(FILE) $(if $(SCHEDULER),--scheduler $(SCHEDULER)) $(if $(OUT),--out $(OUT))

serve:  ## show the built book on http://localhost:8000
	@test -f _build/html/index.html || { echo "make: no book yet; run: make book" >&2; exit 2; }
	@$(PY) -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

bench: install  ## our code beside its peers, ratios from one run, kept for the scoreboard
	@mkdir -p _build; rm -f _build/bench.jsonl
	@for file in tests/bench/[a-z]*.py; do case $$file in */harness.py|*/network.py) ;; *) \
		TOKENLIFE_BENCH=_build/bench.jsonl $(PY) $$file || exit 1 ;; esac; done
	@$(PY) tests/bench/harness.py _build/bench.jsonl

gpu: install  ## measure this machine's GPU in under five minutes, into data/results/
	@$(PY) -m tokenlife.costs.gpu_run

record: install  ## measure anew what pages show as recorded: a calm quarter of an hour
	@mkdir -p _build
	@for chapter in $$(grep -l '^keep = False' notebooks/*.py); do echo "recording $$chapter"; \
		$(BIN)/jupytext --quiet --to ipynb -o _build/record.ipynb $$chapter && \
		$(BIN)/papermill --log-level ERROR --no-progress-bar -k python3 -p keep True \
		_build/record.ipynb _build/record.ipynb || exit 1; done

format: install  ## let ruff lay out the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock:  ## resolve requirements.in and package.json again (asks the package indexes)
	@$(PYTHON) -m venv _build/lock && _build/lock/bin/pip install -q uv
	@_build/lock/bin/uv pip compile --universal --python-version 3.11 --no-annotate --no-header \
		--upgrade -o requirements.lock requirements.in
	@PATH="$(CURDIR)/$(BIN):$$PATH" npm install --package-lock-only

clean:  ## remove what was built; keep the environment
	@rm -rf _build .pytest_cache .ruff_cache .hypothesis

distclean: clean  ## remove the environment too
	@rm -rf $(VENV) node_modules

install: $(STAMP) node_modules/.package-lock.json

$(STAMP): $(LOCKS)
	@case "$(TORCH)" in default|cpu|existing) ;; \
		*) echo "make: TORCH=$(TORCH) is not known; take TORCH=default, cpu or existing" >&2; exit 2 ;; esac
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "make: $(PYTHON) is missing or older than 3.11; name a newer one, like: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "make: $(PYTHON) has no venv module; install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 2; }
	@if [ "$(TORCH)" = existing ]; then $(PYTHON) -c 'import torch' 2>/dev/null || { \
		echo "make: TORCH=existing, but $(PYTHON) cannot import torch; take TORCH=default or TORCH=cpu" >&2; exit 2; }; fi
	@echo "Installing the environment into $(VENV) (a few minutes at most, TORCH=$(TORCH))"
	@$(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.stamp-* $(VENV)/lib/python*/site-packages/zz_existing_torch.pth
	@$(PIP) install -q --no-deps -r requirements.lock
	@if [ "$(TORCH)" = existing ]; then $(PIP) uninstall -q -y torch 2>/dev/null; \
	elif [ "$(TORCH)" = cpu ]; then $(PIP) install --no-warn-conflicts --retries 0 --extra-index-url $(TORCH_INDEX) -r requirements-torch.lock; \
	else $(PIP) install --no-warn-conflicts -r requirements-torch.lock; fi
	@$(PIP) install -q --no-deps -r requirements-nodeps.lock
	@$(PIP) install -q --no-deps --no-build-isolation -e .
	@# The folder that holds the machine's torch goes last on the path, so that the lock's packages win.
	@if [ "$(TORCH)" = existing ]; then \
		$(PYTHON) -c 'import torch; print(torch.__path__[0].rpartition("/")[0])' \
		> $$(echo $(VENV)/lib/python*/site-packages)/zz_existing_torch.pth; fi
	@$(PY) -c 'import torch; print("torch", torch.__version__)'
	@touch $@

node_modules/.package-lock.json: package.json package-lock.json $(STAMP)
	@PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --no-audit --no-fund --loglevel=error
	@touch $@

.DEFAULT:
	@echo "make: no target '$@'; 'make help' lists them" >&2; exit 2
