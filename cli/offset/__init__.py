"""`cometmq offset`: show and reset consumer offsets."""
