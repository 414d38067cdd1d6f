"""Hand-over: one build spec as the command of another system, with what it cannot carry over."""
