"""Pop journal: checkpoints and acknowledgements in the log, and their recovery."""
