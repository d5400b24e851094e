"""`cometmq ha`: leadership of broker groups."""
