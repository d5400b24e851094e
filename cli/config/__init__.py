"""Configuration files, flags and variables, and the `cometmq config` commands."""
