"""Classic clients at a proxy: requests, passed on to the brokers that they name."""
