"""A shop that publishes its orders and handles them in a separate process."""
