"""`cometmq message`: send, follow and find messages."""
