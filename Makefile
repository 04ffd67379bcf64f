# Every target sets up .venv by itself; all it needs is Python 3.11 and make.
PYTHON ?= python3.11
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests differ in length by a factor of a thousand: whoever has none left takes some from another process.
PARALLEL := -n $(JOBS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo quick test plans test-slow test-all test-oldest test-versions test-jax wheel docs pictures lint format bench bench-scale bench-targets bench-models bench-predicted bench-maxtext test-targets test-targets-all test-models test-models-all test-codebases bench-codebases clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(READY)  ## partition a GPT training step, run it on 8 virtual devices, compare with one device and with XLA
	$(BIN)/python examples/quickstart.py
	$(BIN)/python -m benchmarks.run --programs gpt3

quick: $(READY)  ## a minute's worth of tests from every part
	$(BIN)/python -m pytest $(PARALLEL) -m quick

test: $(READY)  ## all tests but the slow ones
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not targets and not models and not codebases"

# Continuous integration runs one of five parts a day; PART=2/5 chooses the third.
PART ?=

test-slow: $(READY)  ## the slow ones: every measured program, JAX's own harnesses of its primitives, exact verification
	MESHBRIDGE_PART=$(PART) $(BIN)/python -m pytest $(PARALLEL) -m "slow and not long and not targets and not models and not codebases"

plans: $(READY)  ## compare every plan with those on record, before → after; ARGS=--accept puts them on record
	$(BIN)/python -m tests.plans --jobs $(JOBS) $(ARGS)

# Drawn tests draw the same in every other run; here they draw anew, from SEED.
SEED ?= $(shell date +%s)

test-all: $(READY)  ## every test, drawn tests with 500 examples that are new in each run
	MESHBRIDGE_EXAMPLES=long MESHBRIDGE_SEED=$(SEED) $(BIN)/python -m pytest $(PARALLEL)

# The lower bound of jax in pyproject.toml, as the first release of its series; one release between it and the newest.
OLDEST = $(shell sed -n 's/.*"jax>=\([0-9.]*\).*/\1/p' pyproject.toml | head -n 1).0
BETWEEN := 0.10.0

test-versions: test-jax-$(OLDEST) test-jax-$(BETWEEN) test  ## the tests with the oldest jax, one between and the newest; each in a venv

test-oldest: test-jax-$(OLDEST)  ## the tests with the oldest jax that pyproject.toml allows; test-jax-0.10.1 takes any other

.PRECIOUS: .venv-jax-%/.ready
.venv-jax-%/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-jax-$*
	.venv-jax-$*/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]' jax==$* jaxlib==$*
	touch $@

test-jax-%: .venv-jax-%/.ready
	.venv-jax-$*/bin/python -m pytest $(PARALLEL) -m "not slow and not targets and not models and not codebases"

# Each file in processes of its own, as JAX runs them: some tests ask whether a process has used its devices yet.
JAX_FILES := pjit_test api_test shard_map_test export_test aot_test layout_test memories_test shard_alike_test python_callback_test debugging_primitives_test
test-jax: $(READY)  ## JAX's own tests, every function partitioned: JAX_TESTS=PATH is a checkout of the tag that is installed
	@test -f "$(JAX_TESTS)/tests/pjit_test.py" || { echo "make test-jax: JAX_TESTS is '$(JAX_TESTS)', expected a checkout of JAX's sources" >&2; exit 2; }
	cd $(JAX_TESTS) && status=0 && for file in $(JAX_FILES); do \
		PYTHONPATH=$(CURDIR)/tests/jitted JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=8 \
		$(abspath $(BIN))/python -m pytest $(PARALLEL) -p jax_tests -p no:cacheprovider tests/$$file.py || status=1; done; exit $$status

# The compilers of TPUs and GPUs, and one that is not XLA: 1.2 GB that nothing else needs.
TARGETS := .venv-targets

$(TARGETS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(TARGETS)
	$(TARGETS)/bin/pip install --quiet --disable-pip-version-check --editable '.[gpu,test,tpu]' iree-base-compiler
	touch $@

test-targets: $(TARGETS)/.ready  ## what compilers of accelerators make of three small programs, in a venv of its own
	$(TARGETS)/bin/python -m pytest $(PARALLEL) -m "targets and not slow" tests/targets

test-targets-all: $(TARGETS)/.ready  ## the same of every program
	$(TARGETS)/bin/python -m pytest $(PARALLEL) -m targets tests/targets

# Libraries whose models are run and measured: they bring half a gigabyte of their own. Keras Hub asks for TensorFlow, two gigabytes
# more, to read text; its models do without.
MODELS := .venv-models
WITHOUT_DEPENDENCIES := keras-hub

$(MODELS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(MODELS)
	$(MODELS)/bin/pip install --quiet --disable-pip-version-check --editable '.[models,test]'
	$(MODELS)/bin/pip install --quiet --disable-pip-version-check --no-deps $(WITHOUT_DEPENDENCIES)
	touch $@

test-models: $(MODELS)/.ready  ## models of other libraries under one scheme each: numbers, and bytes beside XLA's, in a venv of its own
	$(MODELS)/bin/python -m pytest $(PARALLEL) -m "models and not slow" tests/models

test-models-all: $(MODELS)/.ready  ## the same under every scheme
	$(MODELS)/bin/python -m pytest $(PARALLEL) -m models tests/models

# Codebases that people train with: PYTHON=python3.12 has more of them than 3.11, JAX=0.10.2 chooses a release of jax.
CODEBASES := .venv-codebases
JAX ?=
PROGRAMS ?=

$(CODEBASES)/.ready: pyproject.toml
	$(PYTHON) -m venv $(CODEBASES)
	$(CODEBASES)/bin/pip install --quiet --disable-pip-version-check --upgrade pip
	$(CODEBASES)/bin/pip install --quiet --disable-pip-version-check --editable '.[test]' $(if $(JAX),jax==$(JAX) jaxlib==$(JAX))
	touch $@

test-codebases: $(CODEBASES)/.ready  ## train steps of other codebases, as they stand, under meshbridge.patch, in a venv of its own; PART=2/5 of a few
	$(CODEBASES)/bin/python -m testdata.codebases.install $(if $(PART),--part $(PART))
	MESHBRIDGE_PART=$(PART) $(CODEBASES)/bin/python -m pytest -m codebases tests/codebases

bench-codebases: $(CODEBASES)/.ready  ## the same with what they cost beside XLA, into docs/codebases.md
	$(CODEBASES)/bin/python -m testdata.codebases.install
	$(CODEBASES)/bin/python -m benchmarks.codebases $(PROGRAMS) --page docs/codebases.md

lint: $(READY)  ## style, imports, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/.docs: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

docs: $(VENV)/.docs  ## the documentation as a site, in build/site; a link that leads nowhere is an error
	$(BIN)/mkdocs build --quiet

pictures: $(READY)  ## draw the pictures of README.md from what the commands print
	$(BIN)/python docs/pictures/pictures.py

wheel: $(READY)  ## the packages that a release uploads, in build/dist
	$(BIN)/python -m build --outdir build/dist
	$(BIN)/twine check --strict build/dist/*

format: $(READY)  ## rewrite the code in the project's style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## side by side with XLA's partitioners, on 8 virtual devices
	$(BIN)/python -m benchmarks.run

bench-scale: $(READY)  ## growth of partitioning with ops and devices, into docs/performance.md
	$(BIN)/python -m benchmarks.scale --page docs/performance.md

# What to measure and where to write it: ARGS="--programs vocab_loss --targets tpu:v5e:2x4" writes no page.
ARGS ?= --page docs/benchmarks.md --overview README.md

bench-targets: $(TARGETS)/.ready  ## realistic programs compiled for TPUs and GPUs that need not be there, into docs/benchmarks.md
	$(TARGETS)/bin/python -m benchmarks.targets $(ARGS)

$(TARGETS)/.models: $(TARGETS)/.ready
	$(TARGETS)/bin/pip install --quiet --disable-pip-version-check --editable '.[models]'
	$(TARGETS)/bin/pip install --quiet --disable-pip-version-check --no-deps $(WITHOUT_DEPENDENCIES)
	touch $@

bench-models: $(TARGETS)/.models  ## models of other libraries compiled for GPUs that need not be there, and run on CPU devices, into docs/models.md
	$(TARGETS)/bin/python -m benchmarks.models --page docs/models.md
	$(TARGETS)/bin/python -m benchmarks.model_numbers --page docs/models.md

bench-predicted: $(READY)  ## the predicted step beside what the compilers modelled in bench-targets, into docs/benchmarks.md
	$(BIN)/python -m benchmarks.predicted --page docs/benchmarks.md

bench-maxtext: $(READY)  ## the predicted step beside what is published of MaxText on TPUs and H100, into docs/machines.md
	$(BIN)/python -m benchmarks.maxtext --page docs/machines.md

clean:  ## remove what the targets above have made
	rm -rf $(VENV) .venv-jax-* $(TARGETS) $(MODELS) $(CODEBASES) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
