"""The reference backend: torch on CPU or CUDA, following NxDI's semantics."""
