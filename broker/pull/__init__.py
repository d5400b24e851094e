"""PullMessage, and the offsets of broadcast consumers."""
