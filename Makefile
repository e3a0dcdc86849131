# The whole interface: setup, demo, test, test-k8s, lint, docs, bench, wheel.

# For each of these versions, every package of requirements.lock has a wheel: `make lock` checks it.
VERSIONS := 3.14 3.13 3.12 3.11
# The newest that has the venv module: without it, Debian's Python makes half an environment.
PYTHON ?= $(firstword $(foreach v,$(VERSIONS),$(shell python$(v) -c 'import ensurepip; print("python$(v)")' 2>/dev/null)))
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo check test test-k8s soak lint format docs bench lock wheel

setup: $(STAMP)

# An environment of another version is removed, because venv would mix the two.
$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "needs one of Python $(VERSIONS), with its venv module: apt-get install python3.11-venv (or make PYTHON=...)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || { echo "$(PYTHON) does not run, or has no venv module: apt-get install $(notdir $(PYTHON))-venv"; exit 1; }
	@test -d .venv/lib/python$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_python_version())') || rm -rf .venv
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	$(BIN)/mops jobs submit examples/sir/study.json

# For the inner loop, in less than a minute: tests that start no process of their own (tests/pure).
check: lint
	$(BIN)/pytest -q -n 2 --dist worksteal tests/pure

# MOPS_REQUIRE_AZURITE=1: a missing Azurite fails the tests instead of skipping some. Many tests wait for processes that
# they have killed: three at a time also on two processors. examples/compiled needs a C compiler.
test: setup
	@command -v cc >/dev/null || { echo "the tests need a C compiler: apt-get install gcc libc6-dev"; exit 1; }
	$(BIN)/pytest -n 3 --dist worksteal -m 'not k8s'

# On a real Kubernetes, which it brings up (k8s/test-env): as root on Debian, with Go; or with Docker and kind.
# Each file has services in namespaces of its own, and waits more than it computes: three files at a time.
test-k8s: setup
	MOPS_REQUIRE_K8S=1 $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 25 tests/cluster -m k8s

# Hours: kills at random moments, many more examples, and whether tests notice changes of the pure modules. A failing
# test prints the MOPS_SOAK_SEED that repeats it. mutmut stays out of requirements.lock: nothing else needs its packages.
soak: setup
	MOPS_SOAK=1 HYPOTHESIS_PROFILE=nightly $(BIN)/pytest -n 3 --dist worksteal -m 'not k8s' --timeout 3600
	$(BIN)/pip install --quiet --disable-pip-version-check mutmut==3.8.1
	$(BIN)/python tests/mutation.py --least 90

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation site, into build/docs. A warning is an error: a dead link, a page that no other page lists.
docs: setup
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env docs build/docs

bench: setup
	$(BIN)/python bench/start.py
	$(BIN)/python bench/throughput.py
	$(BIN)/python bench/memory.py
	$(BIN)/python bench/limits.py
	$(BIN)/python bench/shares.py
	$(BIN)/python bench/compaction.py

# dist/mops_runner-VERSION-py3-none-any.whl, to install without a clone.
wheel: setup
	rm -rf build/lib build/bdist.*  # modules that were deleted since the last build would be in the wheel
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist .

# Pins every package with its hashes, and names no index.
COMPILE := pip-compile --quiet --generate-hashes --strip-extras --no-header \
  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links
lock:
	$(BIN)/pip install --quiet pip-tools
	$(BIN)/$(COMPILE) --allow-unsafe --all-extras -o requirements.lock pyproject.toml
	cp requirements.lock requirements-image.lock  # the same versions; scipy draws samples, which pods do not: 110 MB
	$(BIN)/$(COMPILE) --unsafe-package scipy --extra image -o requirements-image.lock pyproject.toml
	for version in $(VERSIONS); do $(BIN)/pip install --quiet --dry-run --ignore-installed --no-deps --require-hashes \
	  --only-binary :all: --python-version $$version --target build/wheels -r requirements.lock || exit 1; done
