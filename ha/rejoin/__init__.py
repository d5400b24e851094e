"""Rejoin of a diverged replica: archive the diverged tail, truncate the log, or reseed."""
