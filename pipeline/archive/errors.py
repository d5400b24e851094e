"""What an archive refuses: a sentence for the person who started the job."""

from ..errors import PipelineError


class ArchiveError(PipelineError):
    """An archive is not what it should be, or somebody else writes to it."""
