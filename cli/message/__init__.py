"""The `cometmq message` commands."""
