"""Errors of the pipeline. Each message states what failed and what to do.

PipelineError
    OptionError        unknown option, or invalid value of an option
    DamagedLogError    bytes of the log are not a valid record (`onCorrupt=fail`)
    DataLossError      requested messages no longer exist (`failOnDataLoss=true`)
    UnreachableError   a path does not exist on this machine, or a broker does not answer
"""

from importlib import metadata


class PipelineError(Exception):
    """Base class of the pipeline's errors."""


class OptionError(PipelineError, ValueError):
    """An option is unknown, missing or has an invalid value."""


class DamagedLogError(PipelineError):
    """Bytes of the log are not a valid record."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(
            f"The log is damaged at offset {offset} ({path}): {reason} Read another replica, set "
            "onCorrupt=skip to leave out damaged records and count their bytes, or set "
            "onCorrupt=permissive to keep records whose only damage is a checksum mismatch or a "
            "body that cannot be decompressed."
        )
        self.path = path
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type["DamagedLogError"], tuple[str, int, str]]:
        return type(self), (self.path, self.offset, self.reason)


class DataLossError(PipelineError):
    """Requested messages no longer exist."""


class UnreachableError(PipelineError):
    """A path does not exist on the machine of the task, or a broker does not answer."""


def spark_needed(what: str) -> str:
    """Return the sentence for a PySpark that is missing or too old."""
    try:
        found = f"PySpark {metadata.version('pyspark')} is installed"
    except metadata.PackageNotFoundError:
        found = "PySpark is not installed"
    return f"{what} need PySpark 4.0 or newer, and {found}: pip install 'cometmq[spark]'."
