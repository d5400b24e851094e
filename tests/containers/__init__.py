"""The image and the compose file, tested with a Docker engine."""
