"""NxD Inference: its configuration as data; NxDI itself is imported only inside functions."""
