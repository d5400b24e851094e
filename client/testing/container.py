"""A broker in a container, for tests that use testcontainers (extra `containers`).

    with CometMQContainer() as broker:
        broker.create_topic("orders")
        producer = cometmq.sync.Producer(broker.endpoints)

The image is the one that the project's Dockerfile makes (`docker build -t cometmq .`); no registry has it.
Promises: one broker without replicas, reached through the port that Docker maps (it advertises the address
that a client dialled, so that a route works from where the client is); started means that a send would
succeed; leaving the context removes the container and what it wrote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import HttpWaitStrategy

IMAGE = "cometmq"
PORT = 8081
_HEALTH_PORT = 5557
START_S = 60
# Files of 1 GiB, of which a broker allocates three at once, would fill a laptop's disk; a test needs little.
_SETTINGS = {"mappedFileSizeCommitLog": str(16 << 20)}
_SNAKE = re.compile(r"([a-z0-9])(?=[A-Z])")


class ContainerCommandFailed(RuntimeError):
    """A command inside the container failed; the message is what it printed."""


class CometMQContainer(DockerContainer):
    """One broker; use it with `with`."""

    def __init__(
        self, image: str = IMAGE, *, settings: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        """`settings`: keys of broker.conf; `more` goes to testcontainers' DockerContainer."""
        super().__init__(image, command="broker", **more)
        self.with_exposed_ports(PORT, _HEALTH_PORT)
        self.with_env("COMETMQ_ADVERTISE", "echo")
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
        """Create a consumer group; `options` as `cometmq group create` has them. Returns its name."""
        self.command("group", "create", name, *options)
        return name

    def command(self, *arguments: str) -> str:
        """Run `cometmq ...` inside; what it printed. Raises ContainerCommandFailed."""
        done = self.exec(["cometmq", *arguments])
        text = done.output.decode(errors="replace")
        if done.exit_code != 0:
            raise ContainerCommandFailed(f"cometmq {' '.join(arguments)}: {text.strip()}")
        return text

    def __enter__(self) -> Self:
        self.start()
        return self
