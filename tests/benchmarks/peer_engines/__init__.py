"""What `peers.py` beside this folder measures with."""
