"""Settings of the web console beside a broker or a proxy (`console_process.py`)."""

from dataclasses import dataclass, field
from typing import Any


def _setting(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """Whether the process runs a web console, and which."""

    console: bool = _setting(
        False,
        "Run a web console beside this process (docs/console.md). It listens on loopback, and "
        "signs its calls with COMETMQ_ACCESS_KEY and COMETMQ_SECRET_KEY.",
    )
    console_port: int = _setting(8082, "Port of the web console; 0: any free port.")
    console_allow_changes: bool = _setting(
        False, "Let the web console change the cluster; false: it only reads."
    )
    console_login: bool = _setting(
        False, "Users of the cluster log in to the web console, and see and change what they may."
    )

    def __post_init__(self) -> None:
        if self.console_login and self.console_allow_changes:
            raise ValueError("consoleLogin and consoleAllowChanges exclude each other")
        if not 0 <= self.console_port <= 65_535:
            raise ValueError(f"consolePort={self.console_port} is not a port")
