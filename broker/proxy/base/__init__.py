"""Configuration of the proxy, the cluster as it sees it, and the owner of each request."""
