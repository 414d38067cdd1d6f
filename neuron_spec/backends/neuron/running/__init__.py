"""The speculators over NxDI's compiled applications.

device.py   drafts verified on the device: fused graphs, and a target that samples there
host.py     logits leave the device, and the host verifies by any rule
medusa.py   a tree of Medusa heads
"""
