"""Is it faster: workloads and measurements of speculation on against off."""
