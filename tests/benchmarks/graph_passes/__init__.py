"""What `graphs.py` beside this folder measures with."""
