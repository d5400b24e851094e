"""`cometmq pipeline`: Spark jobs."""
