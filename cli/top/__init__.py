"""`cometmq top`: the state of a cluster, refreshed."""
