"""`cometmq cluster` and `cometmq up`, and the supervisor of a local cluster."""
