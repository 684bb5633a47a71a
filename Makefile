# `make help` lists what there is. Continuous integration runs these targets and nothing else.

VENV   := .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python
STAMP  := $(VENV)/.installed
CLASSES := $(VENV)/spark-classes.jsa
# The newest Python >= 3.11 on the PATH; override with `make PYTHON=/path/to/python3.12`.
PYTHON ?= $(shell sh dev/find_python)
PYTEST := $(PY) -m pytest
# Tests of streams mostly wait; more than four Sparks would need much memory.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist worksteal
# A test that does not even end when its time is over ends its process; another one goes on.
STUCK := -o faulthandler_timeout=1200 -o faulthandler_exit_on_timeout=true

# Spark starts its workers with this Python, not with whatever `python3` is on the PATH.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PY)

.DEFAULT_GOAL := help
.PHONY: help install java demo servers test test-services test-spark soak recordings lint format \
        test-pyspark-suites bench bench-store bench-stream bench-custom bench-locality \
        bench-databases bench-operations docs docs-generated dist constraints clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' Makefile

install: $(STAMP) java ## Set up .venv with pinned versions, and Java where that is possible

$(STAMP): pyproject.toml constraints.txt dev/requirements.in
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it and run make again." >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { echo "The venv module is missing: install python3-venv and run make again." >&2; exit 1; }
	$(PY) -m pip install --quiet --constraint constraints.txt --requirement dev/requirements.in --editable ".[all]"
	@touch $@

java:
	@sh dev/ensure_java

demo: install ## Show store and streams at work: commit, crash, recover, read an old version
	$(PY) examples/demo.py

# Spark's classes, read once for all JVMs of the tests. Without it they take longer, and no more.
$(CLASSES): $(STAMP) dev/archive_classes.py | java
	@$(PY) dev/archive_classes.py $@ > $(VENV)/spark-classes.log 2>&1 \
	  || echo "Tests will take longer: no archive of Spark's classes, see $(VENV)/spark-classes.log"

servers: install ## Download and build the servers of the tests, as far as they are not in the cache
	$(PY) dev/fetch_servers.py

test: install $(CLASSES) ## Run the tests that need no server
	$(PYTEST) -m "not services and not soak" $(PARALLEL) $(STUCK) $(ARGS)

# They wait for servers most of the time; each of the two has its own.
test-services: install $(CLASSES) servers ## Run the tests against real servers
	$(PYTEST) -m "services and not soak" --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-spark: java ## Run use cases and ten differential cases on another PySpark: VERSION=4.0.0
	@test -n "$(VERSION)" || { echo "Say which PySpark: make test-spark VERSION=4.0.0" >&2; exit 1; }
	sh dev/test_spark "$(PYTHON)" "$(VERSION)"

test-pyspark-suites: install ## Run PySpark's own suites on Holdfast: SPARK=<checkout of Spark>
	@test -n "$(SPARK)" || { echo "Say where Spark is: make test-pyspark-suites SPARK=../spark" >&2; exit 1; }
	PYTHONPATH=$(CURDIR)/dev $(PY) -m pyspark_suites "$(SPARK)" $(ARGS)

recordings: install ## Record what Spark's own streaming gives, for the tests that replay it
	$(PY) tests/spark/record_native.py $(ARGS)

soak: install $(CLASSES) ## Run the long tests (minutes to hours)
	$(PYTEST) -m soak --timeout=0 $(PARALLEL) $(ARGS)

lint: $(STAMP) ## Check style, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMP) ## Rewrite the sources in house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: bench-store bench-stream bench-custom bench-locality bench-databases bench-operations ## Run every benchmark

bench-store: $(STAMP) ## Measure the store next to its peers; results go to benchmarks/results
	$(PY) benchmarks/store.py $(ARGS)

bench-stream: install ## Measure managed state next to Spark's own; results go to benchmarks/results
	$(PY) benchmarks/stream.py $(ARGS)

bench-custom: install ## Measure custom state next to Spark's own; results go to benchmarks/results
	$(PY) benchmarks/custom.py $(ARGS)

bench-locality: install ## Count the tasks that run where their state is; results go to benchmarks/results
	$(PY) benchmarks/locality.py $(ARGS)

bench-operations: $(STAMP) ## Measure rollback, fork, repair and clean-up; results go to benchmarks/results
	$(PY) benchmarks/operations.py $(ARGS)

bench-databases: install ## Measure roots and views in Cassandra and DynamoDB; results go to benchmarks/results
	$(PY) benchmarks/databases.py $(ARGS)

docs: $(STAMP) ## Build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

docs-generated: $(STAMP) ## Write the pages that are generated from the code
	$(PY) dev/gen_docs.py

dist: $(STAMP) ## Build wheel and sdist into dist/
	$(PY) -m build --no-isolation --outdir dist .

constraints: ## Pin the newest versions in constraints.txt (a fresh environment each time)
	sh dev/pin_constraints "$(PYTHON)"

clean: ## Remove what the other targets made, .venv included
	rm -rf $(VENV) .venv-spark-* build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis \
	       .import_linter_cache spark-warehouse metastore_db artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
