"""Outputs held to a grammar: which tokens may come next, whatever proposed them.

Everything but `compiler.py` is pure; only that file imports xgrammar, inside its functions.
"""

from neuron_spec.grammars.base import Grammar, Matcher, NodeMasks, allowed_after, node_masks
from neuron_spec.grammars.compiler import SchemaCompiler
from neuron_spec.grammars.response_format import schema_of

__all__ = [
    "Grammar",
    "Matcher",
    "NodeMasks",
    "SchemaCompiler",
    "allowed_after",
    "node_masks",
    "schema_of",
]
