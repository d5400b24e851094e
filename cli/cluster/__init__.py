"""The `cometmq cluster` and `cometmq up` commands, and the supervisor of a local cluster."""
