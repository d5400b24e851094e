"""The `rocketmq` source: batch and streaming, from store directories or over the wire."""
