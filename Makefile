# `make help` lists the targets that have a text after `##`.

# For each of these versions, every package of requirements.lock has a wheel: `make lock` checks it.
VERSIONS := 3.14 3.13 3.12 3.11
# The newest that has the venv module: without it, Debian's Python makes half an environment.
PYTHON ?= $(firstword $(foreach v,$(VERSIONS),$(shell python$(v) -c 'import ensurepip; print("python$(v)")' 2>/dev/null)))
BIN := .venv/bin
STAMP := .venv/.installed
DEMO := .venv/.demo
UV := uv==0.13.9

# Some environments of CI set it. Without stored bytecode, which uv does not make, each process of the tests would compile
# pyarrow, distributed and pandas again: 3.5 s of a processor instead of 1.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo check test test-k8s soak lint format docs bench lock wheel release

# Plain `make` does the same: it changes nothing.
help: ## list these targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(STAMP) ## make .venv, with all packages at locked versions

$(STAMP): $(DEMO) requirements.lock
	$(call install,requirements.lock)
	@touch $@

# uv installs the same packages in a fraction of the time, from the index that pip uses. Where the index does not have uv,
# or uv does not reach the index, pip installs them.
INDEX = $${PIP_INDEX_URL:-$$($(BIN)/pip config get global.index-url 2>/dev/null || echo https://pypi.org/simple)}
install = UV_NATIVE_TLS=1 UV_DEFAULT_INDEX="$(INDEX)" \
  $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r $(1) 2>/dev/null || \
  $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r $(1)

define check_python
	@test -n "$(PYTHON)" || { echo "needs one of Python $(VERSIONS), with its venv module: apt-get install python3.11-venv (or make PYTHON=...)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || { echo "$(PYTHON) does not run, or has no venv module: apt-get install $(notdir $(PYTHON))-venv"; exit 1; }
endef

# What the demo needs. An environment of another version is removed, because venv would mix the two.
$(DEMO): requirements-demo.lock pyproject.toml
	$(check_python)
	@test -d .venv/lib/python$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_python_version())') || rm -rf .venv
	$(PYTHON) -m venv .venv
	-@$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: $(UV)
	$(call install,requirements-demo.lock)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(DEMO) ## run the example
	$(BIN)/mops jobs submit examples/sir/study.json

# For the inner loop, in less than a minute: tests that start no process of their own (tests/pure).
check: lint ## lint, types, and the tests that start no processes (1 min)
	$(BIN)/pytest -q -n 2 --dist worksteal tests/pure

# MOPS_REQUIRE_AZURITE=1, MOPS_REQUIRE_BROWSER=1: a missing Azurite or Chromium fails the tests instead of skipping some.
# Tests wait more than they compute: four at a time also on two processors. examples/compiled needs a C compiler.
test: setup ## all tests except those on Kubernetes
	@command -v cc >/dev/null || { echo "the tests need a C compiler: apt-get install gcc libc6-dev"; exit 1; }
	$(BIN)/pytest -n 4 --dist worksteal -m 'not k8s'

# On a real Kubernetes, which it brings up (k8s/test-env): as root on Debian, with Go; or with Docker and kind.
# Each file has services in namespaces of its own, and waits more than it computes: four files at a time. They are nice
# to the pods, for which they wait. The test of the dashboard and the tests of versitygw need no Kubernetes, but programs that
# k8s/testcluster builds.
test-k8s: setup ## start a real Kubernetes, and run the tests on it
	MOPS_REQUIRE_K8S=1 nice $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder --durations 25 tests/cluster \
	  tests/local/system/test_dashboard.py tests/local/storage -m k8s

# Hours: kills at random moments, many more examples, and whether tests notice changes of the pure modules. A failing
# test prints the MOPS_SOAK_SEED that repeats it. mutmut stays out of requirements.lock: nothing else needs its packages.
soak: setup ## the long tests, for hours: random kills, mutation tests
	MOPS_SOAK=1 HYPOTHESIS_PROFILE=nightly $(BIN)/pytest -n 4 --dist worksteal -m 'not k8s' --timeout 3600
	$(BIN)/pip install --quiet --disable-pip-version-check mutmut==3.8.1
	$(BIN)/python tests/mutation.py --least 90

lint: setup ## check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## format the code, and repair what ruff can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation site, into build/docs. A warning is an error: a dead link, a page that no other page lists.
docs: setup ## build the documentation into build/docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env docs build/docs

bench: setup ## measure throughput, memory, limits and shares
	$(BIN)/python bench/start.py
	$(BIN)/python bench/throughput.py
	$(BIN)/python bench/busy.py
	$(BIN)/python bench/memory.py
	$(BIN)/python bench/limits.py
	$(BIN)/python bench/shares.py
	$(BIN)/python bench/compaction.py

# dist/mops_runner-VERSION-py3-none-any.whl, to install without a clone.
wheel: ## build dist/mops_runner-VERSION-py3-none-any.whl
	$(check_python)
	rm -rf build/venv build/lib build/bdist.*  # modules that were deleted since the last build would be in the wheel
	$(PYTHON) -m venv build/venv
	build/venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps -w dist .

# REGISTRY=registry.example.org/team; .ci/release has more variables.
release: ## build wheel, image and chart, push the last two to REGISTRY
	.ci/release "$(REGISTRY)"

# Pins every package with its hashes, and names no index.
COMPILE := pip-compile --quiet --generate-hashes --strip-extras --no-header \
  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links
lock: ## pin the dependencies in the lock files
	$(BIN)/pip install --quiet pip-tools
	$(BIN)/$(COMPILE) --allow-unsafe --all-extras -o requirements.lock pyproject.toml
	cp requirements.lock requirements-demo.lock
	$(BIN)/$(COMPILE) --allow-unsafe --build-deps-for editable --extra demo -o requirements-demo.lock pyproject.toml
	cp requirements.lock requirements-image.lock  # the same versions; scipy draws samples, which pods do not: 110 MB
	$(BIN)/$(COMPILE) --unsafe-package scipy --extra image --extra plots --extra ui -o requirements-image.lock pyproject.toml
	sed -i '/^$$/,$$d' requirements-image.lock  # a warning that scipy is not in it
	for version in $(VERSIONS); do $(BIN)/pip install --quiet --dry-run --ignore-installed --no-deps --require-hashes \
	  --only-binary :all: --python-version $$version --target build/wheels -r requirements.lock || exit 1; done
