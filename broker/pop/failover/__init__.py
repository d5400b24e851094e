"""Changes of leader: the role switch of pops and the takeover of deliveries."""
