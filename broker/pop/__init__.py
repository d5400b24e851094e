"""Pop consumption: ReceiveMessage, acknowledgements, retries, dead letters, order. `receive.py` is the service."""
