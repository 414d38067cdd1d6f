# make demo   the whole path on a real model: inspect, prepare, check, compile, generate on and off
#             (METHOD=eagle3, medusa, model or ngram instead of the EAGLE head)
# make test   the tests (make test-slow: those that kill and race for minutes)
# make test-neuron  on a trn or inf instance: what is missing, then the recorded models compiled and
#             compared on the device. PYTHON=/opt/aws_neuronx_venv_.../bin/python: the environment
#             with AWS's Neuron packages, neuron-spec, pytest and pytest-timeout
# make check  lint, types, import contract, README against the program
# make bench  speculation on against off, and against transformers, in one run; what HTTP costs; then
#             the next eight
# make bench-peers  every draft method, transformers, llama.cpp and vLLM on the same weights
#             (LLAMA_PYTHON=, VLLM_PYTHON=: interpreters that have them; DTYPE=bfloat16)
# make bench-steps  a step's time by batch and context, its overhead, prompts against transformers
# make bench-start  from a new process to the first token
# make bench-drafters  acceptance length of every drafter by kind of work
# make bench-by-load  draft length by load against always on and always off; the plan against what is
#             measured
# make bench-graphs  the compiled kernels against torch.compile and AOTInductor on the same pass
#             (DTYPE=bfloat16); a quarter of an hour
# make bench-pinned  what `verification.pin_shapes` costs
# make bench-prepare  `prepare` against cp and against load and save: time and peak memory, 4.5 GB
# make soak   a server under 200 clients for five minutes; SOAK_SECONDS=60 for less

.PHONY: demo test test-slow test-neuron check soak clean
.PHONY: bench bench-peers bench-steps bench-start bench-drafters bench-by-load bench-pinned
.PHONY: bench-graphs bench-prepare

BIN := .venv/bin

METHOD ?= eagle
SPEC = compile/smollm2-135m-$(METHOD).cpu.toml

demo:
	@.ci/setup demo,serve
	@$(BIN)/neuron-spec demo --spec $(SPEC)

test:
	@.ci/setup dev
	@$(BIN)/python -m pytest

test-slow:
	@.ci/setup dev
	@.ci/tools
	@$(BIN)/python -m pytest -m slow

PYTHON ?= python3

test-neuron:
	@$(PYTHON) -c 'from neuron_spec.cli.main import main; main()' doctor
	@$(PYTHON) -m pytest -m neuron --verbose tests/neuron

check:
	@.ci/setup dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --quiet tests/test_readme.py

bench:
	@.ci/setup dev
	@$(BIN)/neuron-spec prepare $(SPEC)
	@$(BIN)/neuron-spec compile $(SPEC)
	@$(BIN)/neuron-spec bench build/smollm2-135m-$(METHOD).cpu/artifact --peer transformers
	@$(BIN)/python tests/benchmarks/drafters.py
	@$(BIN)/python tests/benchmarks/prepare.py
	@$(BIN)/python tests/benchmarks/serving.py
	@$(BIN)/python tests/benchmarks/by_load.py
	@$(BIN)/python tests/benchmarks/graphs.py
	@$(BIN)/python tests/benchmarks/pinned.py --dtype bfloat16
	@$(BIN)/python tests/benchmarks/steps.py
	@$(BIN)/python tests/benchmarks/start.py
	@$(MAKE) --no-print-directory bench-peers

LLAMA_PYTHON ?= $(BIN)/python
VLLM_PYTHON ?= $(BIN)/python
DTYPE ?= float32

bench-peers:
	@.ci/setup dev
	@$(BIN)/python tests/benchmarks/peers.py --dtype $(DTYPE) \
		--llama-python $(LLAMA_PYTHON) --vllm-python $(VLLM_PYTHON)

bench-steps:
	@.ci/setup dev
	@$(BIN)/python tests/benchmarks/steps.py

bench-start:
	@.ci/setup dev
	@$(BIN)/python tests/benchmarks/start.py

bench-drafters:
	@.ci/setup dev
	@$(BIN)/python tests/benchmarks/drafters.py

bench-by-load:
	@.ci/setup dev
	@$(BIN)/python tests/benchmarks/by_load.py

bench-pinned:
	@.ci/setup dev
	@$(BIN)/python tests/benchmarks/pinned.py --dtype bfloat16

bench-graphs:
	@.ci/setup dev
	@$(BIN)/python tests/benchmarks/graphs.py --dtype $(DTYPE)

bench-prepare:
	@.ci/setup dev
	@$(BIN)/python tests/benchmarks/prepare.py

SOAK_SECONDS ?= 300
HEALTH_LIMIT_MS ?= 100

soak:
	@.ci/setup dev
	@$(BIN)/python tests/benchmarks/soak.py --seconds $(SOAK_SECONDS) --health-limit $(HEALTH_LIMIT_MS)

clean:
	rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
