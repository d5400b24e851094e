"""The `cometmq store` commands."""
