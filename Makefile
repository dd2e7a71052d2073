# Everything runs in .venv, which the first target that needs it sets up. PYTHON, CC and JAVA_HOME
# choose the tools; PYTEST and BENCH take extra arguments.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-slow wheel pythons wheels bench bench-spark bench-peers bench-report docs lint clean build java test-c sanitize sanitize-python

VENV := .venv
PY := $(VENV)/bin/python
# Only a compiler that the caller chose; else the preflight finds one.
ifeq ($(origin CC),default)
CC :=
endif
export CC PYTHON
# Python keeps what it compiled, whatever the environment says: a run starts it hundreds of times.
export PYTHONDONTWRITEBYTECODE :=

# As many of its programs at a time as there are processors.
C_TESTS = $(MAKE) -s -C csrc/tests -j $$(nproc) --output-sync

C_FILES := $(wildcard csrc/*.c csrc/*/*.c)
C_HEADERS := $(wildcard csrc/*.h csrc/*/*.h)
CORE := $(filter-out csrc/tests/%,$(C_FILES) $(C_HEADERS)) $(wildcard pystate/_core/*.p*) setup.py
C_CHECK := -std=c11 -D_GNU_SOURCE -O2 -Icsrc -Wall -Wextra -Wno-missing-field-initializers -Wconversion -Wshadow \
           -Wstrict-prototypes -Werror

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

demo: java $(VENV)/.demo $(VENV)/.built ## follow 336 776 real flights as a stream on Spark, and verify the result
	@$(PY) -m pystate.examples.flights $(DEMO)

# Two at a time: Spark's tests wait more than they compute. Files stay whole, for their fixtures, and
# begin in the order of pyproject.toml's `testpaths`: the long ones first, so that both end together.
PYTEST_RUN := $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: java build test-c ## the C tests, then pytest
	@$(PYTEST_RUN) $(PYTEST)

# Hours: kills, random programs and models for long, everything at every step. Some tests take longer
# than what counts as hanging elsewhere, and to show the stacks of running threads may end the process.
test-slow: java build ## what `make test` leaves out, and how long it takes
	@cc=$$(.ci/preflight compiler $(PY)) && begun=$$(date +%s) && $(C_TESTS) CC=$$cc slow && \
	    echo "the C tests took $$(($$(date +%s) - begun)) s"
	@PYSTATE_THOROUGH=1 $(PYTEST_RUN) -o faulthandler_timeout=14400 -m "slow or drawn or hypothesis" $(PYTEST)

wheel: java ## build dist/*.whl, install it alone into fresh environments, and run README's examples there
	@python=$$(.ci/preflight python) && cc=$$(.ci/preflight compiler "$$python") && \
	    CC=$$cc .ci/wheel "$$python"

pythons: $(VENV)/.built ## build the wheel for another Python of this machine, and test it there without Spark
	@.ci/pythons

wheels: $(VENV)/.built ## the same for every Python of this machine, as dist/*-manylinux*.whl
	@.ci/pythons all

bench: $(VENV)/.bench $(VENV)/.built ## ratios against a Python dict and friends, as one table
	@$(PY) -m bench $(BENCH)

bench-spark: java $(VENV)/.bench $(VENV)/.built ## the same job with pystate, without state, and with Spark's own state
	@$(PY) -m bench --spark $(BENCH)

# What pystate is compared with: two stores beside it, and engines that need other versions of its
# packages, in environments of their own.
bench-peers: $(VENV)/.bench $(VENV)-peers/.installed $(VENV)-flink/.installed ## installs LMDB, rocksdict, Bytewax, Pathway and Flink
	@$(PY) -m pip install -q "lmdb>=1.4" "rocksdict>=0.3"

$(VENV)-peers/.installed: PEERS := "bytewax==0.21.*" "pathway==0.33.*" numpy
$(VENV)-flink/.installed: PEERS := "apache-flink==2.3.*"
$(VENV)-peers/.installed $(VENV)-flink/.installed: | $(VENV)/.base
	@$(PY) -m venv $(@D) && $(@D)/bin/python -m pip install -q $(PEERS) && touch $@

# An hour. What bench/report/runs.jsonl has already is not measured again, unless BENCH="--again" or
# BENCH="--only count,spark-count" asks for it.
bench-report: java $(VENV)/.bench $(VENV)/.built ## measure what bench/REPORT.md lacks, and write it, its plots and the guide's tables
	@$(PY) -m bench --report $(BENCH); failed=$$?; $(PY) -m bench.report && exit $$failed

docs: $(VENV)/.docs $(VENV)/.built ## the guide and the reference as web pages in build/docs; a warning is an error
	@$(PY) -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

lint: $(VENV)/.lint $(VENV)/.built ## ruff, mypy, stubtest, clang-format, C warnings as errors
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -m mypy.stubtest pystate._core.core pystate._core.calls pystate._core.ported --mypy-config-file pyproject.toml
	@$(VENV)/bin/clang-format --dry-run -Werror $(C_FILES) $(C_HEADERS)
	@for cc in gcc clang; do \
	    command -v $$cc >/dev/null 2>&1 || continue; \
	    echo $(C_FILES) | xargs -P $$(nproc) -n 1 $$cc $(C_CHECK) -c -o /dev/null || exit 1; \
	    echo "$$cc: no warnings"; \
	done

clean: ## remove the environment and everything that was built or written by a tool
	@[ ! -f csrc/tests/Makefile ] || $(MAKE) -s -C csrc/tests clean
	@rm -rf $(VENV) $(VENV)-peers $(VENV)-flink build dist *.egg-info pystate/_core/*.c pystate/_core/*.so bench/results \
	    .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	@find bench pystate tests -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@.ci/preflight java

build: $(VENV)/.test $(VENV)/.built

# What is in $(VENV) has a stamp each: the tools that compile, the extension, and the packages of an
# extra. A target installs those that it needs; the tests need all, since they look at each extra.
EXTRAS := demo test lint bench docs
comma := ,
space := $(subst ,, )
# Python compiles what it imports, and much of what is installed is never imported.
INSTALL := $(PY) -m pip install -q --no-compile

$(VENV)/.base: pyproject.toml
	@python=$$(.ci/preflight python) && .ci/preflight compiler "$$python" >/dev/null && \
	    echo "Setting up $(VENV) (once, a minute or two)" && \
	    "$$python" -m venv $(VENV)
	@$(INSTALL) "setuptools>=77" "cython>=3.1"
	@touch $@

$(VENV)/.test: WITH := $(EXTRAS)
$(EXTRAS:%=$(VENV)/.%): $(VENV)/.%: pyproject.toml | $(VENV)/.built
	@cc=$$(.ci/preflight compiler $(PY)) && CC=$$cc $(INSTALL) --no-build-isolation \
	    -e ".[$(subst $(space),$(comma),$(or $(WITH),$*))]"
	@touch $(addprefix $(VENV)/.,$(or $(WITH),$*))

$(VENV)/.built: $(VENV)/.base $(CORE)
	@cc=$$(.ci/preflight compiler $(PY)) && CC=$$cc $(PY) setup.py -q build_ext --inplace
	@touch $@

test-c:
	@cc=$$(.ci/preflight compiler $(PY)) && $(C_TESTS) CC=$$cc

# The C tests under ASan and UBSan; those with threads under TSan, and as they are what forks a process
# with threads, which ASan's allocator does not bear.
sanitize: $(VENV)/.built
	@cc=$$(.ci/preflight compiler $(PY)) && \
	    $(C_TESTS) CC=$$cc SANITIZE=address,undefined && \
	    $(C_TESTS) run-test_reader run-test_tree_reader CC=$$cc SANITIZE=thread && \
	    $(C_TESTS) run-test_reads run-test_stack_faults CC=$$cc

# The Python tests over an instrumented extension, built beside the ordinary one.
SANITIZE := address,undefined
sanitize-python: build
	@cc=$$(.ci/preflight compiler $(PY)) && CC=$$cc tests/sanitize/run $(SANITIZE) $(PYTEST)
