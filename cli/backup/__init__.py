"""`cometmq backup`: a cluster saved in a directory, checked and restored."""
