"""CometMQ: a replicated message broker that speaks RocketMQ 5's wire and keeps RocketMQ 5's files.

The repository root is this package; `docs/architecture.md` maps its folders. What users import is
loaded lazily, so that `import cometmq` costs nothing and pulls in neither gRPC nor Spark.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
