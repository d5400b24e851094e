"""Configuration files, flags and environment variables; the `cometmq config` commands."""
