"""The nameserver for classic clients: answers to remoting requests, from the route tables."""
