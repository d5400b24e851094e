"""`cometmq mirror`: topics and groups of another cluster, copied while it runs."""
