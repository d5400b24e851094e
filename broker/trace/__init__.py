"""The message trace that the broker writes."""
