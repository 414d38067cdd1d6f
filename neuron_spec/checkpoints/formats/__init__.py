"""Key tables of the checkpoint families: which tensors, of which shape. Data beside its format."""
