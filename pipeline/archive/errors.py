"""Error of the archive: a sentence for the user who started the job."""

from ..errors import PipelineError


class ArchiveError(PipelineError):
    """An archive is invalid, or another process writes to it."""
