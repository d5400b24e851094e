"""Owner of the other end of a local connection: socket inode and process.

The kernel is queried for that socket (sock_diag(7)), which takes some tens of microseconds.
Without sock_diag the whole socket table is read, which takes tens of milliseconds: too long for a
proxy with many connections. Linux only.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import struct
from pathlib import Path

Address = tuple[str, int]

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY, _REQUEST = 20, 1  # SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST
_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_ASK = struct.Struct("=BBBxI")  # inet_diag_req_v2, before the socket's id
_ANY = 0xFFFFFFFF  # every state; no cookie
_INODE_AT = _HEADER.size + 4 + 48 + 16  # in inet_diag_msg: after the id and four counters
#: The table is not a snapshot: a line can be missed while connections open and close.
_LOOKS = 3
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def socket_inode(source: Address, to: Address) -> int:
    """Return the inode of the TCP socket with this local and remote address.

    Covers IPv4, also in an IPv6 socket. 0: the socket does not exist or is in TIME_WAIT.
    """
    return _ask(source, to) if _kernel_answers() else _look_for(source, to)


def has_socket(pid: int, inode: int) -> bool:
    """Return whether a process has the socket open."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        names = os.listdir(folder)
    except OSError:
        return False  # the process has ended
    for name in names:
        try:
            found = _SOCKET.match(os.readlink(folder / name))
        except OSError:
            continue  # this descriptor was closed; later ones are still checked
        if found and int(found[1]) == inode:
            return True
    return False


@functools.cache
def _kernel_answers() -> bool:
    """Return whether sock_diag works; without it the kernel reports every socket as missing."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as mine,
    ):
        try:
            return _ask(mine.getsockname(), server.getsockname()) != 0
        except OSError:
            return False


def _ask(source: Address, to: Address) -> int:
    ends = [socket.inet_aton(address[0]).ljust(16, b"\0") for address in (source, to)]
    asked = _ASK.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, _ANY)
    asked += struct.pack(">HH", source[1], to[1]) + b"".join(ends)
    asked += struct.pack("=III", 0, _ANY, _ANY)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.send(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked)
        answer = kernel.recv(4096)
    if _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return 0  # an error: no such socket
    return int(struct.unpack_from("=I", answer, _INODE_AT)[0])


def _look_for(source: Address, to: Address) -> int:
    return next((inode for _ in range(_LOOKS) if (inode := _in_tables(source, to))), 0)


def _in_tables(source: Address, to: Address) -> int:
    """Look up the socket in /proc/net; gRPC's sockets are in the table of IPv6."""
    address = socket.inet_aton(to[0])[::-1].hex().upper()
    ends = re.compile(rf"^\s*\d+: \w+:{source[1]:04X} \w*{address}:{to[1]:04X} ")
    for table in ("/proc/net/tcp6", "/proc/net/tcp"):
        with open(table, encoding="ascii") as lines:
            for line in lines:
                # A socket in TIME_WAIT has no inode: its port may be in use by another connection.
                if ends.match(line) and (inode := int(line.split()[9])):
                    return inode
    return 0
