"""An artifact in more than one process, on one machine or many: replicas on Ray Serve."""
