# Two commands do everything, set-up included: `make serve` and `make test`.
PYTHON ?= $(or $(shell python3 tools/fastest_python.py),python3)
BIN := .venv/bin
# A broker needs a tenth of what the tests need: each has a set-up of its own, in one environment.
SERVES := .venv/.serves
READY := .venv/.ready
NEWEST := .venv-newest
NEWEST_READY := $(NEWEST)/.ready
NODEJS := tests/interop/nodejs
# Without npm the tests that need Node.js are skipped, and say so.
ifneq ($(shell command -v npm 2>/dev/null),)
NODE_READY := $(NODEJS)/node_modules/.ready
endif
# Syncing takes most of the time of the tests, and none of them can see whether it reached a disk: where
# there is room in memory for their stores, they are there. (`make prove` is on the disk.)
MEMORY := $(shell [ -w /dev/shm ] && [ "$$(df -Pk /dev/shm | awk 'NR == 2 {print $$4}')" -gt 8388608 ] && echo /dev/shm)
# Each run has a directory there, which the next one removes if the run is dead (tests/in_memory.py).
IN_MEMORY := $(if $(MEMORY),$(BIN)/python -m tests.in_memory $(MEMORY))

# What a user has set for Python, pip and pytest would change what is installed, where to, or a verdict;
# where pip finds packages is the user's. (PYTHONDONTWRITEBYTECODE, which images of containers set, would
# have each process that a test starts compile all of itself: that takes longer than the rest of its start.)
SOURCES_OF_PIP := $(addprefix PIP_,CACHE_DIR CERT CLIENT_CERT CONFIG_FILE DEFAULT_TIMEOUT EXTRA_INDEX_URL \
	FIND_LINKS INDEX_URL KEYRING_PROVIDER NO_INDEX PROXY RETRIES TIMEOUT TRUSTED_HOST)
unexport $(filter-out PYTHON $(SOURCES_OF_PIP),$(filter PYTHON% PIP_% PYTEST_% HYPOTHESIS_%,$(.VARIABLES)))
# Also where a configuration of pip's says otherwise: it fails in a virtual environment.
export PIP_USER := 0

.PHONY: serve quick test test-newest prove proofs measure lint format types lock clean

serve: $(SERVES)
	$(BIN)/amqpstore serve --data ./data

# While you work: lint, and the unit tests of what has changed since main, or of `ROOM=broker`; under half
# a minute (tests/quick.py).
quick: $(READY)
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/vulture
	PYTHONHASHSEED=0 PYTHONMALLOC=pymalloc $(IN_MEMORY) $(BIN)/python -m tests.quick $(ROOM)

# `-X dev` also has the interpreter check its own memory at each allocation, which takes a fifth of the
# time and looks for mistakes in C: that is left to `make prove`. Three workers keep two cores busy, as a
# third of the time a test waits. The order of sets is the same each time, as is the seed (tests/README.md).
test: $(READY) $(NODE_READY)
	PYTHONHASHSEED=0 PYTHONMALLOC=pymalloc $(IN_MEMORY) $(BIN)/python -bb -X dev -m pytest -n 3 -m "not long"

# The unit tests on the newest Python of this machine (tools/newest_python.py), unless `make test` has it.
test-newest: $(NEWEST_READY)
	@$(NEWEST)/bin/python -c 'import platform; print("unit tests on Python", platform.python_version())'
	if [ "$$($(NEWEST)/bin/python -V)" != "$$($(BIN)/python -V)" ]; then PYTHONHASHSEED=0 PYTHONMALLOC=pymalloc \
		$(IN_MEMORY) $(NEWEST)/bin/python -bb -X dev -m pytest -n 3 -m "not long" tests/unit; \
		else echo "make test runs on it"; fi

# The long proofs, about an hour. Each run draws a seed, and so proves other histories: it prints the
# seed, and `make prove SEED=N` runs the same again. `make prove FOR=480` begins no test after 8 minutes.
prove: SEED := $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')
prove: $(READY) $(NODE_READY)
	PYTHONHASHSEED=$(SEED) $(BIN)/python -bb -X dev -m pytest -n 2 -m "long and not alone" --for $(or $(FOR),inf) --seed $(SEED)

# The share of them that a change must pass: a list with a seed, moved on by hand (tests/proofs.toml).
proofs: $(READY) $(NODE_READY)
	PYTHONHASHSEED=0 $(BIN)/python -bb -X dev -m pytest -n 2 --share

# What clients have beside attacks and beside other work, and what a message costs on disk, one test at a
# time, a quarter of an hour: for a machine on which nothing else runs.
measure: $(READY)
	$(BIN)/python -bb -X dev -m pytest -m alone

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/vulture

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Everything is pinned by constraints.txt; the project itself is installed in place.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check -c constraints.txt

# An environment knows its place by path: one that was moved or copied with its checkout is made anew.
MOVED := $(shell [ ! -s $(SERVES) ] || [ "$$(cat $(SERVES))" = "$$(pwd -P)" ] || echo moved)
.PHONY: moved
moved:

$(SERVES): pyproject.toml constraints.txt $(MOVED)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "amqpstore needs Python 3.11 or newer; say which: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(if $(MOVED),--clear) .venv
	$(BIN)/python $(PIP_INSTALL) setuptools
	$(BIN)/python $(PIP_INSTALL) --no-build-isolation -e .
	pwd -P > $@

$(READY): $(SERVES)
	$(BIN)/python $(PIP_INSTALL) --no-build-isolation -e '.[dev]'
	touch $@

# Of the same version as .venv there is nothing to install: its tests are not run again.
$(NEWEST_READY): $(READY)
	rm -rf $(NEWEST)
	python=$$(python3 tools/newest_python.py); $${python:-$(BIN)/python} -m venv $(NEWEST)
	if [ "$$($(NEWEST)/bin/python -V)" != "$$($(BIN)/python -V)" ]; then \
		$(NEWEST)/bin/python $(PIP_INSTALL) setuptools && \
		$(NEWEST)/bin/python $(PIP_INSTALL) --no-build-isolation -e '.[dev]'; fi
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
	pwd -P > $(SERVES)
	touch $(READY)

clean:
	rm -rf .venv $(NEWEST) $(NODEJS)/node_modules build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
