"""When a stored message counts: durability for producers, dispatch for consumers."""
