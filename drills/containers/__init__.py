"""Drills on the containers of docker-compose.yml."""
