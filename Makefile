# Each target makes what it needs. PYTHON=python3.12 picks the interpreter of new environments;
# USE=/path/to/python runs with that interpreter as it is and makes no environment. CPU=1 sets up a torch without CUDA.
PYTHON ?= python3
WORKERS ?= 3
SEED ?= 0
ONLY ?= *
VENV := .venv
VENV36 := .venv-triton36
TOOLS := .venv-tools
VENVDOCS := .venv-docs
export PYTHONDONTWRITEBYTECODE := # else each process that a test starts compiles the package anew

ifdef USE
RUN := PYTHONPATH="$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))" $(USE)
READY :=
else
RUN := $(VENV)/bin/python
READY := $(VENV)/ready
endif

PIP_FLAGS := -qq --disable-pip-version-check
TORCH_CPU := torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu

# One file or folder of tests for each dependency, and what it is used for.
BOUNDS_TESTS := tests/test_cli.py tests/frontend tests/test_graphs.py tests/test_settings.py tests/runtime/test_torch_op.py \
	tests/runtime/test_launch.py tests/autotune/test_store.py tests/autotune/test_engine.py tests/autotune/test_progress.py \
	tests/codegen/test_targets.py tests/codegen/test_operations.py tests/certificate/test_memory.py tests/ir

.PHONY: help report demo dist bounds editors interchange test collect test-slow test-benchmarks types docs lint bench-lowering bench-tuning conformance names clean fuzz verify-examples golden mutants prove-ranges verify-mutants
.DEFAULT_GOAL := help

help:
	@echo "make demo            lower, compile and run a matrix product, and check it against torch"
	@echo "                     (CPU=1 on the first call: a torch without CUDA, 0.2 GB instead of gigabytes)"
	@echo "make test            run the tests but the slow ones and those of benchmarks/ (WORKERS=$(WORKERS); TESTS=\"tests/ir\": these, slow or not)"
	@echo "make test-slow       run the slow ones: whole tunings, processes that are killed, compilers"
	@echo "make test-benchmarks run those"
	@echo "make fuzz            random programs against an oracle (COUNT=10000 SEED=0 FUZZ=\"--device cuda\"); findings go to build/fuzz"
	@echo "                     FUZZ=\"--no-run --compile cuda:80,cuda:90,cuda:100,gfx942\": compiles all by both Tritons, without a GPU"
	@echo "make types           compile every entry of the table of element types, 100 s a target and Triton"
	@echo "                     (TARGETS=cuda:90,... PYTHONS=newest,/other/python NAMES=gemm)"
	@echo "make docs            the manual and the reference as a site in build/site, which a browser opens as files"
	@echo "make report          draw reports in a headless Chromium (BROWSER=chromium); fails where a page logs an error"
	@echo "make lint            ruff, mypy --strict, and which folder may import which"
	@echo "make verify-examples certificates of all examples and of the suite's kernels (KERNELS=\"softmax gemm\")"
	@echo "make interchange     the generic form of all examples' stages, and of random programs', through xDSL and back (COUNT=100 SEED=0)"
	@echo "make golden          record what programs lower to, after a change that is meant"
	@echo "make mutants         change lines of the compiler and the tuner, and see whether tests notice"
	@echo "                     (COUNT=450 SEED=0 ONLY=\"passes/cse*\"; COUNT=0 makes the map of coverage alone; a larger COUNT goes on;"
	@echo "                     AGAIN=FILE: what survived in a run whose output is in the file)"
	@echo "make prove-ranges    hold every rule about integers against all values of 4-bit types, 9 minutes (SHARE=100: a part)"
	@echo "make verify-mutants  of mistakes in passes that change an example's kernel, how many validation notices (COUNT=100)"
	@echo "make bench-lowering  time the lowering of 384 configurations"
	@echo "make bench-tuning    what the autotuner takes and gives, on a GPU (PARTS=\"cold winner model space\")"
	@echo "make conformance TILELANG=FOLDER   run TileLang's example scripts from a copy of its repository"
	@echo "                     (CONFORMANCE=\"--jobs 8 --only attention --verify --logs build/conformance\")"
	@echo "make names TILELANG=FOLDER         which modules and names of a copy of TileLang neither import nor are refused"
	@echo "make dist            build dist/: the sdist and the wheel, checked, the same bytes each time"
	@echo "make bounds          install the oldest and the newest of each dependency, and run a part of the tests with them"
	@echo "                     (PYTHON=python3.13; downloads CUDA builds of torch; BOUNDS=lowest-direct: the oldest alone)"
	@echo "make editors         what pyright says of a user's file (tests/packaging/user_program.py)"
	@echo "make clean           remove environments, caches and build outputs"

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 10) <= v < (3, 14) else "tiledsl needs Python 3.10 to 3.13; $(PYTHON) is %d.%d; set PYTHON=..." % v[:2])'
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	$(if $(CPU),@$(VENV)/bin/python -m pip install $(PIP_FLAGS) --no-deps $(TORCH_CPU))
	@$(VENV)/bin/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	@touch $@

# The Triton that machines in the field have. The emission tests compile in it; that needs neither torch nor numpy.
$(VENV36)/ready: Makefile
	@echo "setting up $(VENV36) (once)"
	@$(PYTHON) -m venv $(VENV36)
	@$(VENV36)/bin/python -m pip install $(PIP_FLAGS) --only-binary triton triton==3.6.0
	@touch $@

# What builds and checks distributions; nothing of it is needed to run or test tiledsl.
$(TOOLS)/ready: Makefile
	@echo "setting up $(TOOLS) (once)"
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install $(PIP_FLAGS) 'twine>=6' 'uv>=0.5' 'basedpyright>=1.30'
	@touch $@

# The texts of mkdocs alone: what the site says of tiledsl is written by an interpreter that has it.
$(VENVDOCS)/ready: pyproject.toml
	@echo "setting up $(VENVDOCS) (once)"
	@$(PYTHON) -m venv $(VENVDOCS)
	@sed -n '/^docs = /,/^]/s/^ *"\(.*\)",$$/\1/p' pyproject.toml > $(VENVDOCS)/requirements.txt
	@$(VENVDOCS)/bin/python -m pip install $(PIP_FLAGS) -c constraints.txt -r $(VENVDOCS)/requirements.txt
	@touch $@

demo: $(READY)
	@$(RUN) examples/quickstart.py

test: $(READY) $(if $(USE),,$(VENV36)/ready)
	@OMP_NUM_THREADS=1 $(if $(USE),,TILEDSL_TEST_TRITON36="$(CURDIR)/$(VENV36)/bin/python") \
		$(RUN) -m pytest -q -n $(WORKERS) --dist worksteal $(or $(TESTS),-m "not slow" --ignore=tests/benchmarks tests)

# Imports all tests, which leaves their bytecode for the workers of `test`: each would write it anew, at the same time.
collect: $(READY)
	@found=$$(OMP_NUM_THREADS=1 $(RUN) -m pytest -qq --collect-only tests) || { echo "$$found"; exit 1; }

test-slow:
	@$(MAKE) --no-print-directory test TESTS="-m slow --ignore=tests/benchmarks tests"

test-benchmarks: $(READY)
	@OMP_NUM_THREADS=1 $(RUN) -m pytest -q -n $(WORKERS) --dist worksteal tests/benchmarks

types: $(READY) $(if $(USE),,$(VENV36)/ready)
	@OMP_NUM_THREADS=1 $(if $(USE),,TILEDSL_TEST_TRITON36="$(CURDIR)/$(VENV36)/bin/python") \
		$(RUN) -m tests.legality "$(TARGETS)" "$(PYTHONS)" "$(NAMES)"
	@TILEDSL_TEST_ALL_TYPES=1 OMP_NUM_THREADS=1 $(RUN) -m pytest -q tests/legality/test_numerics.py

fuzz: $(READY) $(if $(USE),,$(VENV36)/ready)
	@$(RUN) -m tests.fuzz --count $(or $(COUNT),10000) --seed $(SEED) --workers $(WORKERS) --compile-share 0.1 \
		$(if $(USE),,--triton36 "$(CURDIR)/$(VENV36)/bin/python") --out build/fuzz $(FUZZ)

report: $(READY)
	$(if $(USE),,@$(VENV)/bin/python -m pip install $(PIP_FLAGS) -e '.[report]')
	@$(RUN) -m tests.report.browse "$(or $(BROWSER),chromium)" build/reports

lint: $(READY)
	@$(RUN) -m ruff check -q .
	@$(RUN) -m ruff format -q --check .
	@$(RUN) -m mypy
	@$(RUN) -m mypy tests/packaging/user_program.py
	@$(RUN) -m pytest -q --no-header -p no:cacheprovider tests/test_layers.py

docs: $(READY) $(VENVDOCS)/ready
	@$(RUN) -m docs.site build/site-pages
	@NO_MKDOCS_2_WARNING=1 $(VENVDOCS)/bin/mkdocs build -q --strict -f docs/site/mkdocs.yml
	@echo "open build/site/index.html"

verify-examples: $(READY)
	@OMP_NUM_THREADS=1 $(RUN) -m benchmarks.verify $(KERNELS)

interchange: $(READY)
	@OMP_NUM_THREADS=1 $(RUN) -m tests.interchange.whole $(SEED) $(or $(COUNT),100)

golden: $(READY)
	@OMP_NUM_THREADS=1 $(RUN) -m tests.golden

mutants: $(READY)
	@OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(RUN) -m tests.mutants --count $(or $(COUNT),450) --seed $(SEED) --only "$(ONLY)" \
		--workers $(WORKERS) $(if $(AGAIN),--again "$(AGAIN)")

prove-ranges: $(READY)
	@$(RUN) -m tests.passes.prove_ranges $(SHARE)

verify-mutants: $(READY)
	@OMP_NUM_THREADS=1 $(RUN) -m tests.certificate.pass_mutants $(or $(COUNT),100) $(or $(SEED),0)

bench-lowering: $(READY)
	@$(RUN) benchmarks/lowering.py

bench-tuning: $(READY)
	@$(RUN) -m benchmarks.tuning $(PARTS)

conformance: $(READY)
	@test -d "$(TILELANG)" || { echo "run make conformance TILELANG=FOLDER with a copy of TileLang's repository" >&2; exit 2; }
	@$(RUN) tests/conformance/run.py "$(TILELANG)" $(CONFORMANCE)

names: $(READY)
	@test -d "$(TILELANG)" || { echo "run make names TILELANG=FOLDER with a copy of TileLang's repository" >&2; exit 2; }
	@$(RUN) tests/conformance/names.py "$(TILELANG)"

# An environment is made for the wheel, too, with the dependencies of constraints.txt.
dist: $(READY) $(TOOLS)/ready
	@rm -rf dist
	@$(RUN) -m tests.packaging.dist dist --tools "$(CURDIR)/$(TOOLS)/bin/python" --try -c "$(CURDIR)/constraints.txt"

# What pyright, and so most editors, say of a user's file. enableTypeIgnoreComments: those are for mypy there.
editors: $(READY) $(TOOLS)/ready
	@mkdir -p build
	@echo '{"include": ["../tests/packaging/user_program.py"], "typeCheckingMode": "standard", "extraPaths": [".."],' \
		'"reportUnnecessaryTypeIgnoreComment": "error", "enableTypeIgnoreComments": false}' > build/pyright.json
	@$(TOOLS)/bin/basedpyright -p build/pyright.json --pythonpath "$(or $(USE),$(CURDIR)/$(VENV)/bin/python)"

bounds: $(TOOLS)/ready
	@mkdir -p build/bounds
	@set -e; for which in $(or $(BOUNDS),lowest-direct highest); do \
		env=build/bounds/$$which; echo "== $$which"; \
		$(TOOLS)/bin/uv pip compile -q --no-header --no-annotate --resolution $$which --extra verify -p $(PYTHON) pyproject.toml -o $$env.txt; \
		$(TOOLS)/bin/uv venv -q --clear -p $(PYTHON) $$env; \
		$(TOOLS)/bin/uv pip install -q -p $$env -r $$env.txt; \
		$(TOOLS)/bin/uv pip install -q -p $$env -c $$env.txt -e '.[dev]'; \
		$(TOOLS)/bin/uv pip list -q -p $$env | grep -wE "click|filelock|joblib|lark|networkx|numpy|platformdirs|rich|torch|triton|z3-solver"; \
		OMP_NUM_THREADS=1 $$env/bin/python -m pytest -q -p no:cacheprovider $(BOUNDS_TESTS); \
	done

clean:
	@rm -rf $(VENV) $(VENV36) $(TOOLS) $(VENVDOCS) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .mutants
	@find tiledsl passes autotune tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
