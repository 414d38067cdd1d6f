"""The parts of `tests/benchmarks/steps.py`."""
