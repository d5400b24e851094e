"""The replication stream between leader and follower."""
