"""Decoding on a CPU through compiled kernels: whole layers in one call, weights read once.

What comes out for a token depends on that token and on those it sees, bit for bit: not on how many
are scored in the pass, nor on the number of threads. Products of more rows than `Native.max_rows`,
where there is such a limit, round otherwise, whoever makes them. The kernels are C++
(`kernels.cpp`), compiled once a machine and kept in the user's cache; without a compiler PyTorch's
operators are used.
"""
