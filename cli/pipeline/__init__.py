"""The `cometmq pipeline` commands."""
