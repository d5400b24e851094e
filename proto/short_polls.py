"""Short polls: an extension of ReceiveMessage for polls of less than 5 s.

A broker holds a poll for at least 5 s, because some official clients ask for none and then poll in
a busy loop. A client that paces its polls marks the call with this metadata and is answered after
the time that it asked for. Apache's proxy ignores the mark: it refuses a poll whose deadline leaves
less than 5 s.
"""

from typing import Final

SHORT_POLL: Final = "x-cometmq-short-poll"
SHORT_POLL_METADATA: Final = ((SHORT_POLL, "1"),)
