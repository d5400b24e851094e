"""Drills on hosts: network namespaces with links, packet filters and processes of their own."""
