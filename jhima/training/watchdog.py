"""Ends a job when one of its ranks dies, with a line that names it.

A launcher ends the other ranks of a dead rank's host, but not those of other hosts: they would wait
in a collective until it times out. So every rank keeps a connection to rank 0, which the kernel
closes however a process ends.
"""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import socket
import sys
import threading
from contextlib import suppress
from typing import NoReturn

import torch.distributed as dist

JOINING = 120.0  # seconds for all ranks to connect to rank 0
# The last message of a rank that is done. Any other message is rank 0's: the number of a dead rank.
LEFT = b"."

_connections: list[socket.socket] = []  # to rank 0; on rank 0, to all others


def watch() -> None:
    """From now until `leave`, this process ends within a second of the end of any other rank.

    A line says whose end it was. Call it on every rank after the process group's start. A host that
    is cut off from the network is noticed within a minute.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == 1:
        return
    server, port, secret = None, 0, b""
    if rank == 0:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        server = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        port, secret = server.getsockname()[1], secrets.token_bytes(32)
    name = f"rank {rank} (process {os.getpid()} on {socket.gethostname()})"
    hellos = everywhere((name, port, secret))
    _, port, secret = hellos[0]
    if server:
        connections = _accept(server, secret, world)
    else:
        connection = socket.create_connection((os.environ["MASTER_ADDR"], port), JOINING)
        connection.sendall(secret + rank.to_bytes(4, "big"))
        connections = {0: connection}
    for connection in connections.values():
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 6)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        # A forked data worker would hold the connection open after this process's death.
        os.register_at_fork(after_in_child=connection.close)
    _connections[:] = connections.values()
    names = [name for name, _, _ in hellos]
    threading.Thread(target=_end_with, args=(rank, connections, names), daemon=True).start()


def leave() -> None:
    """Ends the watch, and the process group, when all ranks are done."""
    dist.barrier()
    for connection in _connections:
        connection.sendall(LEFT)
    _connections.clear()
    dist.destroy_process_group()


def end(message: str) -> NoReturn:
    """Ends the run on all ranks with one line. Every rank must call it."""
    is_first = dist.get_rank() == 0
    leave()
    sys.exit(f"{os.path.basename(sys.argv[0])}: {message}" if is_first else 1)


def _accept(server: socket.socket, secret: bytes, world: int) -> dict[int, socket.socket]:
    """The other ranks' connections, by rank. One that does not send the secret is closed."""
    connections: dict[int, socket.socket] = {}
    server.settimeout(JOINING)
    with server:
        while len(connections) < world - 1:
            connection, _ = server.accept()
            connection.settimeout(5)
            hello = b""
            with suppress(OSError):
                hello = connection.makefile("rb").read(36)
            if hmac.compare_digest(hello[:32], secret):
                connections[int.from_bytes(hello[32:], "big")] = connection
            else:
                connection.close()
    return connections


def _end_with(rank: int, connections: dict[int, socket.socket], names: list[str]) -> None:
    """Waits for a rank to die and then ends this process; returns when all ranks have left."""
    dead = _first_death(connections)
    if dead is None:
        return
    if rank == 0:
        for connection in connections.values():
            with suppress(OSError):  # the dead rank's own
                connection.sendall(dead.to_bytes(4, "big"))
    first_survivor = 1 if dead == 0 else 0
    if os.environ.get("LOCAL_RANK") == "0" or rank == first_survivor:  # one line per host
        print(
            f"{names[dead]} has ended before the others, which end too; "
            "run the same command to resume",
            file=sys.stderr,
            flush=True,
        )
    os._exit(1)  # the main thread may be in a collective that never returns


def _first_death(connections: dict[int, socket.socket]) -> int | None:
    """The rank that was the first to end without LEFT; None when all have left."""
    with selectors.DefaultSelector() as selector:
        for other, connection in connections.items():
            selector.register(connection, selectors.EVENT_READ, other)
        while selector.get_map():
            for key, _ in selector.select():
                message = b""
                with suppress(OSError):  # reset, or no answer to keepalive probes
                    message = key.fileobj.recv(4)
                selector.unregister(key.fileobj)
                if not message:
                    return key.data
                if message != LEFT:
                    return int.from_bytes(message, "big")
    return None


def everywhere(value: object) -> list:
    """Each rank's value, by rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
