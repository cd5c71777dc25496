# Two commands do everything, set-up included: `make serve` and `make test`.
PYTHON ?= $(or $(shell python3 tools/fastest_python.py),python3)
BIN := .venv/bin
READY := .venv/.ready
NODEJS := tests/interop/nodejs
# Without npm the tests that need Node.js are skipped, and say so.
ifneq ($(shell command -v npm 2>/dev/null),)
NODE_READY := $(NODEJS)/node_modules/.ready
endif
# Syncing takes most of the time of the tests, and none of them can see whether it reached a disk: where
# there is room in memory for their stores, they are there. (`make prove` is on the disk.)
MEMORY := $(shell [ -w /dev/shm ] && [ "$$(df -Pk /dev/shm | awk 'NR == 2 {print $$4}')" -gt 8388608 ] && echo /dev/shm)

# Where bytecode is not kept (images of containers say so), each process that a test starts would compile
# all of itself: that takes longer than the rest of its start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: serve test prove measure lint format types lock clean

serve: $(READY)
	$(BIN)/amqpstore serve --data ./data

# `-X dev` also has the interpreter check its own memory at each allocation, which takes a fifth of the
# time and looks for mistakes in C: that is left to `make prove`. Three workers keep two cores busy, as a
# third of the time a test waits.
test: $(READY) $(NODE_READY)
	PYTHONMALLOC=pymalloc $(if $(MEMORY),TMPDIR=$(MEMORY)) $(BIN)/python -bb -X dev -m pytest -n 3 -m "not long"

# The long proofs, about an hour. Each run draws a seed, and so proves other histories: it prints the
# seed, and `make prove SEED=N` runs the same again. `make prove FOR=480` begins no test after 8 minutes.
prove: $(READY) $(NODE_READY)
	$(BIN)/python -bb -X dev -m pytest -n 2 -m "long and not alone" --for $(or $(FOR),inf) $(if $(SEED),--seed $(SEED))

# What clients have beside attacks and beside other work, and what a message costs on disk, one test at a
# time, a quarter of an hour: for a machine on which nothing else runs.
measure: $(READY)
	$(BIN)/python -bb -X dev -m pytest -m alone

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Everything is pinned by constraints.txt; the project itself is installed in place.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "amqpstore needs Python 3.11 or newer; say which: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

# Pinned by package-lock.json.
$(NODEJS)/node_modules/.ready: $(NODEJS)/package.json $(NODEJS)/package-lock.json
	cd $(NODEJS) && npm ci --loglevel=error
	touch $@

lock:  ## pin the newest releases that pyproject.toml allows
	rm -rf .venv && $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade setuptools
	$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[dev]'
	$(BIN)/python -m pip freeze --exclude-editable --all | grep -v '^pip==' > constraints.txt
	touch $(READY)

clean:
	rm -rf .venv $(NODEJS)/node_modules build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
