"""Pop consumption: ReceiveMessage, acknowledgements, retries, dead letters, FIFO groups."""
