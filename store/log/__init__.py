"""The commit log: segments, allocation, memory, and the pool of write buffers."""
