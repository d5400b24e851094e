"""Relay of Ethernet frames between two interfaces, with a delay: netem for kernels without it.

`python relay.py ONE OTHER DELAY_MS` passes frames in both directions, prints `ready` when it does,
and runs until it is killed. `python relay.py INTERFACE` switches the offloads of an interface off:
what is sent to the relay must have its checksums and be segmented.
"""

from __future__ import annotations

import ctypes
import fcntl
import select
import socket
import struct
import sys
import time
from collections import deque

ALL_PROTOCOLS = 0x0003
OUTGOING = 4  # packet type of frames that this machine sends
FRAME = 1 << 16
QUEUE_MAX = 20_000  # frames held in one direction: 1 s at 30 MB/s; more are dropped, as by a router
_SIOCETHTOOL = 0x8946
_OFFLOADS = (0x17, 0x1F, 0x25)  # transmit checksum, TCP segmentation, generic segmentation


def plain_frames(interface: str) -> None:
    """Switch off the offloads of an interface, so that its frames are complete."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), ctypes.addressof(value))
            fcntl.ioctl(control, _SIOCETHTOOL, request)


def open_interface(name: str) -> socket.socket:
    """Return a socket that receives and sends the frames of an interface."""
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    found.bind((name, 0))
    found.setblocking(False)
    return found


def main() -> None:
    """Relay until the process is killed."""
    sockets = [open_interface(name) for name in sys.argv[1:3]]
    delay_s = float(sys.argv[3]) / 1000
    held: deque[tuple[float, int, bytes]] = deque()
    poller = select.poll()
    for one in sockets:
        poller.register(one, select.POLLIN)
    numbers = {one.fileno(): at for at, one in enumerate(sockets)}
    print("ready", flush=True)
    while True:
        left_s = held[0][0] - time.monotonic() if held else 1.0
        for file, _ in poller.poll(max(0, int(left_s * 1000))):
            at = numbers[file]
            try:
                frame, address = sockets[at].recvfrom(FRAME)
            except BlockingIOError:
                continue
            if address[2] != OUTGOING and len(held) < QUEUE_MAX:
                held.append((time.monotonic() + delay_s, 1 - at, frame))
        while held and held[0][0] <= time.monotonic():
            _, to, frame = held.popleft()
            try:
                sockets[to].send(frame)
            except OSError:
                continue  # the interface is down, or its queue is full: the frame is lost


if __name__ == "__main__":
    if len(sys.argv) == 2:
        plain_frames(sys.argv[1])
    else:
        main()
