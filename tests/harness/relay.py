"""TCP relay between two test processes; connections can be silenced or redirected."""

import asyncio


class Relay:
    """Passes connections on to a port; existing ones can be silenced."""

    def __init__(self, to: int) -> None:
        self.to = to  #: the target port of new connections
        self.joined = 0  #: connections so far
        self._hearing = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._hearing.set()
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def make_deaf(self) -> None:
        """Silence existing connections; new ones are passed on."""
        self._hearing.clear()
        self._hearing = asyncio.Event()
        self._hearing.set()

    def refuse(self) -> None:
        """Accept no further connections."""
        assert self._server is not None
        self._server.close()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.joined += 1
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.to)
        hearing = self._hearing
        for one, other in ((reader, other_writer), (other_reader, writer)):
            task = asyncio.create_task(_pump(one, other, hearing))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hearing: asyncio.Event
) -> None:
    try:
        while data := await reader.read(65_536):
            await hearing.wait()  # forever, once silenced: neither end is notified
            writer.write(data)
    except ConnectionError:
        pass  # the connection is reset: the other end is notified
    finally:
        writer.close()
