# OSDP: everything a newcomer types. `make help` lists it. Needs Python >= 3.11, g++ >= 12 and CMake; the rest is installed
# into a virtual environment. Settings: PYTHON (which Python makes .venv), TORCH (what pip installs), JOBS (compilers at once).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

TORCH ?= torch==2.13.0
JOBS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
RANKS ?= 2
comma := ,
# Tests of ranks at once: ranks wait for each other, and another test runs meanwhile.
RANK_TESTS ?= $(shell echo $$(($(JOBS) < 4 ? $(JOBS) + 1 : 4)))
# C++ tests at once: some wait more than they compute.
CPP_TESTS := $(shell echo $$(($(JOBS) + 1)))

# Note [Which environment]
# An environment is active when VIRTUAL_ENV or CONDA_PREFIX names it. It is used when its own Python is 3.11 or newer and
# finds torch in it; else .venv in this clone is made (once) and used. Stamps say what was done to which environment:
# they live in build/, one folder per environment, and are older than an environment that was made anew.
ACTIVE := $(or $(VIRTUAL_ENV),$(CONDA_PREFIX))
USABLE := import importlib.util, sys; sys.exit(not (sys.version_info >= (3, 11) and importlib.util.find_spec("torch")))
ifneq ($(ACTIVE),)
  ENV := $(shell "$(ACTIVE)/bin/python" -c '$(USABLE)' 2>/dev/null && echo "$(ACTIVE)")
endif
ifeq ($(ENV),)
  ENV := $(CURDIR)/.venv
endif
ENV_MADE := $(or $(wildcard $(ENV)/pyvenv.cfg $(ENV)/conda-meta/history),$(ENV)/pyvenv.cfg)
STAMPS := build/stamps/$(shell printf '%s' '$(ENV)' | cksum | cut -d' ' -f1)
PY := $(ENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
export PATH := $(ENV)/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# What ccache knows counts in every clone: paths are hashed from the clone on.
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1
# Where it is set (in containers, mostly) every process that runs tests, and every rank, compiles all of the Python it
# imports, and pytest rewrites each test's asserts anew: half of what starting costs.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

CSRC := $(shell find csrc cmake -type f) CMakeLists.txt pyproject.toml
CPP_FILES = $(shell find csrc tests/cpp tests/fuzz -name '*.[hc]pp')
PY_FILES := osdp tests examples benchmarks tools

.PHONY: help
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## *' '{ printf "  make %-20s %s\n", $$1, $$2 }'

.PHONY: demo
demo: $(STAMPS)/built  ## train a GPT on 2 ranks: describe, profile, search, shard, train, checkpoint (2 minutes, and 5 the first time)
	@examples/demo.sh "$(PY)" $(RANKS) $(ARGS)

# Packages are mostly download, and ranks and the tests under the thread sanitizer mostly wait: others run beside them.
.PHONY: test
test: $(STAMPS)/tools  ## all tests: C++ under sanitizers, then Python
	@$(MAKE) -s $(STAMPS)/packages & packages=$$!; $(MAKE) test-sanitize; wait $$packages
	@$(MAKE) build
	@$(MAKE) test-units
	@( status=0; $(MAKE) JOBS=1 CPP_TESTS=4 test-threads >build/threads.out 2>&1 || status=$$?; cat build/threads.out; exit $$status ) & \
	  threads=$$!; status=0; $(MAKE) test-ranks || status=$$?; wait $$threads || status=$$?; exit $$status

# What finds most for its time: plans against brute force, what is refused, and gradients against one process's.
CHECK := tests/unit/planning/test_search.py tests/unit/planning/test_limits.py tests/unit/planning/test_verify.py tests/unit/test_public_names.py \
  tests/unit/fsdp/test_drop_in_table.py tests/distributed/test_equivalence.py tests/distributed/test_frozen.py \
  tests/distributed/test_nested_wraps.py
.PHONY: check
check: lint test-cpp build  ## the linters, the C++ tests and the Python tests that find most: about 3 minutes
	@echo "== Python tests: $(CHECK)"
	@OMP_NUM_THREADS=1 $(PY) -m pytest $(CHECK)

# Configures and builds: $(1) the folder in build/, $(2) what cmake is told, $(3) target.
define cpp_build
@cmake -S . -B build/$(1) -G Ninja -DOSDP_PYTHON=OFF -DOSDP_TESTS=ON $(2) >build/$(1).log || { cat build/$(1).log; exit 1; }
@ninja -C build/$(1) -j$(JOBS) --quiet $(3)
endef
# Builds and runs C++ tests: as above, and ctest's choice.
define cpp_tests
$(call cpp_build,$(1),$(2),$(3))
@ctest --test-dir build/$(1) $(4) --output-on-failure -j$(CPP_TESTS) >build/$(1)-tests.log || { cat build/$(1)-tests.log; exit 1; }; tail -n 4 build/$(1)-tests.log
endef
SANITIZERS := address$(comma)undefined$(comma)float-cast-overflow
# Half of the address sanitizer's time went into the stacks of allocations. A report has one frame of each: for all of
# them, run that test by hand.
export ASAN_OPTIONS ?= malloc_context_size=1
export TSAN_OPTIONS ?= halt_on_error=1

.PHONY: test-cpp
test-cpp: $(STAMPS)/tools  ## the C++ tests without sanitizers, to work on one (CPP=test_planner); `make test` runs those with
	@echo "== C++ tests (build/cpp)"
	$(call cpp_tests,cpp,-DCMAKE_BUILD_TYPE=Release,$(CPP),$(addprefix -R ^,$(addsuffix $$,$(CPP))))

# A clang that can link its fuzzer (the runtime is a package of its own in some distributions); empty: there is none.
FUZZER = $(shell for c in clang++ clang++-2{2,1,0} clang++-1{9,8,7,6,5,4}; do \
  command -v $$c >/dev/null && echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' \
    | $$c -xc++ -fsanitize=fuzzer,address,undefined -o /dev/null - 2>/dev/null && { echo $$c; break; }; done)
sanitized = -DOSDP_SANITIZE=$(SANITIZERS) -DCMAKE_BUILD_TYPE=None
# With the fuzzer's compiler the tests link the search that the fuzzer links: compiled once.
fuzzed = -DOSDP_FUZZ=ON -DCMAKE_CXX_COMPILER=$(1) $(sanitized)

.PHONY: test-sanitize
test-sanitize: $(STAMPS)/tools  ## the same under the address and undefined-behaviour sanitizers
	@echo "== C++ tests under the address and undefined-behaviour sanitizers (build/fuzz with the fuzzer's clang, else build/sanitize)"
	$(if $(FUZZER),$(call cpp_tests,fuzz,$(call fuzzed,$(FUZZER))),$(call cpp_tests,sanitize,$(sanitized)))

.PHONY: test-threads
test-threads: $(STAMPS)/tools  ## those of communication between ranks under the thread sanitizer
	@echo "== C++ tests of communication under the thread sanitizer (build/tsan)"
	$(call cpp_tests,tsan,-DOSDP_SANITIZE=thread -DCMAKE_BUILD_TYPE=None,comm_tests,-L comm)

# Without FUZZ_SECONDS the same inputs in every run, so that a change is judged by itself; with it, new ones for so long.
# What a fuzzer found stays in tests/fuzz/found and is tried first, and by the C++ tests.
FUZZ_RUNS ?= 20000
fuzz_for = $(if $(FUZZ_SECONDS),-max_total_time=$(FUZZ_SECONDS),-runs=$(FUZZ_RUNS) -seed=1)

.PHONY: fuzz
fuzz: $(STAMPS)/tools  ## the planner under libFuzzer, or with new inputs (FUZZ_SECONDS=600); needs clang with its fuzzer
	@[ -n '$(FUZZER)' ] || { echo "== make fuzz needs a clang with libFuzzer; on Debian and Ubuntu: \
	apt-get install clang and libclang-rt-N-dev of its version"; exit 1; }
	@echo "== fuzzing the planner ($(fuzz_for), $(FUZZER), build/fuzz)"
	$(call cpp_build,fuzz,$(call fuzzed,$(FUZZER)),fuzz_planner)
	@rm -rf build/fuzz/requests; mkdir -p build/fuzz/requests; \
	build/fuzz/fuzz_planner $(fuzz_for) -max_len=600 -len_control=0 -timeout=20 -artifact_prefix=build/fuzz/ \
	  build/fuzz/requests tests/fuzz/found 2>build/fuzz/log || { tail -n 40 build/fuzz/log; exit 1; }; tail -n 1 build/fuzz/log

.PHONY: fuzz-compiler
fuzz-compiler:
	@[ -n '$(FUZZER)' ]

# Kept outside of the clone: several GB that every clone can use. Another machine's torch: CUDA_TORCH='torch==2.11.*'.
CUDA_ENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/osdp/cuda-env
CUDA_TORCH ?= torch>=2.11,<2.16
.PHONY: cuda-check
cuda-check:  ## compile, link and load everything against a CUDA torch (kept in ~/.cache/osdp)
	@mkdir -p "$(CUDA_ENV)" build; exec 9>"$(CUDA_ENV).lock"; flock 9; \
	if ! "$(CUDA_ENV)/bin/python" -c 'import torch, sys; sys.exit(not torch.version.cuda)' 2>/dev/null; then \
	  echo "== installing a CUDA build of torch into $(CUDA_ENV) (several GB, once)"; \
	  $(PYTHON) -m venv --clear "$(CUDA_ENV)"; \
	  "$(CUDA_ENV)/bin/python" -m pip install --quiet --disable-pip-version-check '$(CUDA_TORCH)' numpy ninja 'cmake>=3.25'; fi; \
	export PATH="$(CUDA_ENV)/bin:$$PATH"; \
	echo "== CUDA build: $$(python -c 'import torch; print("torch", torch.__version__)') (build/cuda)"; \
	{ cmake -S . -B build/cuda -G Ninja -DPython_EXECUTABLE="$(CUDA_ENV)/bin/python" -DCMAKE_BUILD_TYPE=Release \
	  && ninja -C build/cuda -j$(JOBS) _C _search; } >build/cuda.log 2>&1 || { tail -n 60 build/cuda.log; exit 1; }; \
	python tools/load_extension.py build/cuda

.PHONY: gpu-check
gpu-check:  ## on a machine with a GPU, with the torch that its Python has: everything that needs one, in 10 minutes at most
	@$(PYTHON) tools/gpu_check.py $(ARGS)

.PHONY: test-python
test-python:  ## the Python tests: one process, several at once, then several ranks
	@$(MAKE) test-units
	@$(MAKE) test-ranks

.PHONY: test-units
test-units: build
	@echo "== Python tests of one process"
	@$(PY) -m pytest -n $(JOBS) --dist worksteal tests/unit

.PHONY: test-ranks
test-ranks: build
	@echo "== Python tests of several ranks, which wait for each other: several tests at once"
	@$(PY) -m pytest -n $(RANK_TESTS) --dist loadgroup --ignore=tests/unit

.PHONY: test-extras
test-extras: build  ## the Python tests that CI does not wait for: whole scripts, frameworks, models of transformers (20 minutes)
	@$(PIP) --no-build-isolation -e '.[test,dev,extras]'
	@echo "== pyright"; $(ENV)/bin/basedpyright --level error --pythonpath $(PY) tests/typing
	@OMP_NUM_THREADS=1 $(PY) -m pytest -m extras --ignore=tests/accelerator/test_sensitivity.py $(ARGS)
	@$(MAKE) test-sensitivity

.PHONY: test-sensitivity
test-sensitivity: build  ## leave out what orders streams, one call at a time, in a build of its own: each must be noticed (10 minutes)
	@echo "== an extension that tests can leave calls out of (build/sensitivity)"
	@cmake -S . -B build/sensitivity -G Ninja -DPython_EXECUTABLE="$(PY)" -DCMAKE_BUILD_TYPE=Release -DOSDP_SENSITIVITY=ON \
	  >build/sensitivity.log && ninja -C build/sensitivity -j$(JOBS) _C >>build/sensitivity.log || { cat build/sensitivity.log; exit 1; }
	@OMP_NUM_THREADS=1 OSDP_TEST_EXTENSION="$$(echo $(CURDIR)/build/sensitivity/_C*.so)" $(PY) -m pytest -m extras \
	  tests/accelerator/test_sensitivity.py $(ARGS)

.PHONY: test-accelerator-all
test-accelerator-all: build  ## all ways of training on the ordered device, 2 and 4 ranks, delayed streams (15 minutes); CI runs a part
	@OMP_NUM_THREADS=1 $(PY) tests/accelerator/all_cases.py $(ARGS)

# An environment with nothing in it but what the wheel asks for.
BARE := build/bare
.PHONY: test-wheel
test-wheel: build  ## build a wheel, install it into a bare environment, and train a step there on 2 ranks
	@echo "== a wheel in a bare environment ($(BARE))"
	@rm -rf build/wheel $(BARE); $(PY) -m venv $(BARE)
	@$(PY) -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w build/wheel .
	@$(PY) tools/wheel/contents.py build/wheel/osdp-*.whl
	@$(BARE)/bin/python -m pip install --quiet --disable-pip-version-check build/wheel/osdp-*.whl
	@$(BARE)/bin/python -m pip check
	@cd $(BARE); OMP_NUM_THREADS=1 timeout 300 bin/python -m torch.distributed.run --standalone --nproc-per-node 2 \
	  "$(CURDIR)/tools/first_step.py" .

PYTHONS ?= 3.12 3.13 3.14
# On Linux the package index has the CUDA build alone, several GB: torch's own index has the CPU build of each.
CPU_TORCH ?= https://download.pytorch.org/whl/cpu
.PHONY: test-pythons
test-pythons:  ## build and test with other versions of Python (PYTHONS=3.12), which CI does not wait for (10 minutes each)
	@for version in $(PYTHONS); do \
	  python$$version -c '' 2>/dev/null || { echo "== python$$version is not here"; continue; }; \
	  env=build/python-$$version; echo "== Python $$version ($$env)"; rm -rf $$env; python$$version -m venv $$env; \
	  $$env/bin/python -m pip install --quiet --disable-pip-version-check --retries 0 --extra-index-url $(CPU_TORCH) '$(TORCH)+cpu' 2>/dev/null \
	    || $$env/bin/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'; \
	  $$env/bin/python -m pip install --quiet --disable-pip-version-check '.[test]'; $$env/bin/python -m pip check; \
	  (cd $$env && OMP_NUM_THREADS=1 timeout 300 bin/python -m torch.distributed.run --standalone --nproc-per-node 2 \
	    "$(CURDIR)/tools/first_step.py" .) || exit 1; \
	  cp -r tests benchmarks docs pyproject.toml $$env/; \
	  (cd $$env && bin/python -m pytest tests/unit/plan tests/unit/planning tests/unit/cli) || exit 1; \
	done

.PHONY: build
build: $(STAMPS)/packages $(STAMPS)/built  ## the environment and the extension; does nothing when nothing changed

$(CURDIR)/.venv/pyvenv.cfg:
	@test -n "$(PYTHON)" || { echo "OSDP needs Python 3.11 or newer; found none (set PYTHON=/path/to/python3.11)"; exit 1; }
	@echo "== making the virtual environment .venv with $(PYTHON) (no environment with torch is active)"
	@rm -rf .venv; $(PYTHON) -m venv .venv || { rm -rf .venv; echo "$(PYTHON) -m venv failed: on Debian and Ubuntu, apt install python3-venv"; exit 1; }

$(STAMPS)/torch: $(ENV_MADE)
	@mkdir -p $(@D)
	@if $(PY) -c '$(USABLE)'; then echo "== using the torch of $(ENV)"; \
	else echo "== installing $(TORCH) into $(ENV) (a large download)"; $(PIP) '$(TORCH)'; fi
	@touch $@

.PHONY: tools
tools: $(STAMPS)/tools

$(STAMPS)/tools: $(STAMPS)/torch
	@echo "== installing build tools: scikit-build-core, ninja$$(cmake --version 2>/dev/null | head -n 1 | sed 's/^/; found /')"
	@$(PIP) 'scikit-build-core>=1.1' ninja numpy
	@printf 'cmake 3.25\n%s\n' "$$(cmake --version 2>/dev/null | grep -oE 'version [0-9.]+' | sed 's/version/cmake/')" | sort -V -C \
	  && cmake --version >/dev/null 2>&1 || $(PIP) 'cmake>=3.25'
	@touch $@

$(STAMPS)/packages: $(STAMPS)/tools pyproject.toml
	@echo "== installing what the tests and linters need"
	@$(PY) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	  print(*p["test"], *p["dev"], sep="\n")' >build/packages.txt
	@$(PIP) -r build/packages.txt
	@touch $@

$(STAMPS)/built: $(STAMPS)/tools $(CSRC)
	@echo "== building the extension with $$(c++ --version | head -n 1), $(JOBS) jobs (a few minutes the first time)"
	@$(PIP) --no-build-isolation -e .
	@$(PY) -c 'import osdp, torch; print("== built: osdp", osdp.__version__, "with torch", torch.__version__)'
	@touch $@

.PHONY: lint
lint: build  ## formatting, ruff, mypy, order of includes, and whether the stubs and the table of docs/faults.md are current
	@echo "== clang-format";  $(ENV)/bin/clang-format --dry-run -Werror $(CPP_FILES)
	@echo "== ruff";  $(PY) -m ruff check $(wildcard $(PY_FILES)); $(PY) -m ruff format --check --quiet $(wildcard $(PY_FILES))
	@echo "== mypy";  $(PY) -m mypy; $(PY) -m mypy tests/typing
	@echo "== imports"; $(ENV)/bin/lint-imports --no-logo --cache-dir build/import_linter >build/imports.log || { cat build/imports.log; exit 1; }
	@echo "== stubs"; $(PY) tools/stubs.py --check
	@echo "== outcomes"; $(PY) tools/outcomes.py --check
	@echo "== includes"; $(PY) tools/include_order.py; $(PY) tools/headers.py --check

.PHONY: format
format: build  ## format all C++ and Python, and write the extension's stubs and the table of docs/faults.md anew
	@$(ENV)/bin/clang-format -i $(CPP_FILES)
	@$(PY) tools/stubs.py; $(PY) tools/schema.py; $(PY) tools/machines.py
	@$(PY) -m ruff check --fix --quiet $(wildcard $(PY_FILES)); $(PY) -m ruff format --quiet $(wildcard $(PY_FILES))
	@$(PY) tools/outcomes.py; $(PY) tools/headers.py

.PHONY: docs
docs: build  ## the documentation site, in build/site; a warning is an error
	@$(PY) -c 'import material, mkdocstrings_handlers.python' 2>/dev/null || $(PIP) mkdocs-material mkdocstrings-python
	@$(PY) tools/headers.py; NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet; echo "== build/site/index.html"

.PHONY: bench
bench: build  ## every benchmark, one table each
	@for script in benchmarks/*.py; do echo "== $$script"; $(PY) $$script; done

.PHONY: clean
clean:  ## remove what was built (the environment .venv stays)
	@rm -rf build build-* demo-out osdp/*.so *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
