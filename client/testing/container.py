"""Test broker in a container, for testcontainers (extra `containers`).

    with CometMQContainer() as broker:
        broker.create_topic("orders")
        producer = cometmq.sync.Producer(broker.endpoints)

The image is built from the project's Dockerfile (`scripts/image`); no registry has it.
The container runs one broker without replicas, reached through the port that Docker maps. The
broker advertises the address that the client dialled, so that its routes are reachable. A started
container accepts sends. Leaving the context removes the container and its files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import HttpWaitStrategy

from ... import __version__

IMAGE = f"cometmq:{__version__}"
PORT = 8081
_HEALTH_PORT = 5557
START_S = 60
# Small segments: the broker preallocates three of them, 1 GiB each by default.
_SETTINGS = {"mappedFileSizeCommitLog": str(16 << 20)}
_SNAKE = re.compile(r"([a-z0-9])(?=[A-Z])")


class ContainerCommandFailed(RuntimeError):
    """A command inside the container failed. The message is its output."""


class CometMQContainer(DockerContainer):
    """One broker. Use it with `with`."""

    def __init__(
        self, image: str = IMAGE, *, settings: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        """`settings`: keys of broker.conf; `more` goes to testcontainers' DockerContainer."""
        super().__init__(image, command="broker", **more)
        self.with_exposed_ports(PORT, _HEALTH_PORT)
        self.with_env("COMETMQ_ADVERTISE", "echo")
        self.with_env("COMETMQ_ALLOW_ANONYMOUS", "true")  # the tests of the container's creator
        self.with_env("COMETMQ_STORE_PATH_ROOT_DIR", "/data/store")
        for key, value in {**_SETTINGS, **(settings or {})}.items():
            self.with_env("COMETMQ_" + _SNAKE.sub(r"\1_", key).upper(), value)
        ready = HttpWaitStrategy(_HEALTH_PORT, "/readyz").for_status_code(200)
        self.waiting_for(ready.with_startup_timeout(START_S))

    @property
    def endpoints(self) -> str:
        """HOST:PORT for any RocketMQ 5 client."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(PORT)}"

    def create_topic(self, name: str, *, type: str = "normal", queues: int = 4) -> str:
        """Create a topic: normal, fifo, delay, transaction, priority. Returns its name."""
        self.command("topic", "create", name, "--type", type, "--queues", str(queues))
        return name

    def create_group(self, name: str, *options: str) -> str:
        """Create a consumer group with options of `cometmq group create`. Returns its name."""
        self.command("group", "create", name, *options)
        return name

    def command(self, *arguments: str) -> str:
        """Run `cometmq ...` in the container. Return its output. Raises ContainerCommandFailed."""
        done = self.exec(["cometmq", *arguments])
        text = done.output.decode(errors="replace")
        if done.exit_code != 0:
            raise ContainerCommandFailed(f"cometmq {' '.join(arguments)}: {text.strip()}")
        return text

    def __enter__(self) -> Self:
        self.start()
        return self
