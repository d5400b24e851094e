"""`cometmq dlq`: dead letters of a running cluster."""
