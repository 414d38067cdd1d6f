# make demo   the whole path on a real model: inspect, prepare, check, compile, generate on and off
# make test   the tests
# make check  lint, types, import contract, README against the program
# make bench  speculation on against off, and against transformers, in one run

.PHONY: demo test check bench clean

BIN := .venv/bin

demo:
	@.ci/setup demo,serve
	@$(BIN)/neuron-spec demo

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
	@$(BIN)/neuron-spec prepare compile/smollm2-135m-eagle.cpu.toml
	@$(BIN)/neuron-spec compile compile/smollm2-135m-eagle.cpu.toml
	@$(BIN)/neuron-spec bench build/smollm2-135m-eagle.cpu/artifact --peer transformers

clean:
	rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
