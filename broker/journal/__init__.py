"""What makes pop state survive: checkpoints and acknowledgements in the log, and their recovery."""
