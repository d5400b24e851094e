"""`cometmq store`: offline inspection, check and repair of store directories."""
