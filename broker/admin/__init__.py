"""Administration: topics, groups, offsets, the cluster and messages by key."""
