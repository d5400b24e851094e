"""Official clients, unmodified, against a real cluster."""
