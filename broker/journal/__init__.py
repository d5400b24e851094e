"""Pop journal: checkpoints and acknowledgements of deliveries in the log, and their recovery."""
