"""Errors of the pipeline: each is a sentence that says what is wrong and what to do.

PipelineError
    OptionError        an option that is unknown or has a value that it cannot have
    DamagedLogError    bytes of the log that are no whole record (`onCorrupt=fail`)
    DataLossError      messages that were asked for are not there any more (`failOnDataLoss=true`)
    UnreachableError   a path that this machine does not see, a broker that does not answer
"""


class PipelineError(Exception):
    """Anything that the pipeline refuses or cannot do."""


class OptionError(PipelineError, ValueError):
    """An option that is unknown, missing, or has a value that it cannot have."""


class DamagedLogError(PipelineError):
    """Bytes of the log are no whole record."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(
            f"The log is damaged at offset {offset} ({path}): {reason} Read another replica, or set "
            "onCorrupt=skip (leave such records out and count the bytes) or onCorrupt=permissive "
            "(keep those with nothing wrong except a checksum or a body that cannot be decompressed)."
        )
        self.path = path
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type["DamagedLogError"], tuple[str, int, str]]:
        return type(self), (self.path, self.offset, self.reason)


class DataLossError(PipelineError):
    """Messages that were asked for are not there any more."""


class UnreachableError(PipelineError):
    """Something that exists for the driver and not for the one who reads, or does not answer."""
