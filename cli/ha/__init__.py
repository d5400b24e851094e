"""The `cometmq ha` commands."""
