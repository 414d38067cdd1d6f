# make demo   the whole path on a real model: inspect, prepare, check, compile, generate on and off
#             (METHOD=ngram for prompt lookup instead of the EAGLE head)
# make test   the tests
# make check  lint, types, import contract, README against the program
# make bench  speculation on against off, and against transformers, in one run

.PHONY: demo test check bench clean

BIN := .venv/bin

METHOD ?= eagle
SPEC = compile/smollm2-135m-$(METHOD).cpu.toml

demo:
	@.ci/setup demo,serve
	@$(BIN)/neuron-spec demo --spec $(SPEC)

test:
	@.ci/setup dev
	@$(BIN)/python -m pytest

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

clean:
	rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
