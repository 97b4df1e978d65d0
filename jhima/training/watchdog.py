"""Ends a job when one of its ranks dies, with a line that names it.

A launcher ends the other ranks of a dead rank's host, but not those of other hosts: they would wait in a collective
until it times out. So every rank keeps a connection to rank 0, which the kernel closes however a process ends.
"""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import socket
import sys
import threading

import torch.distributed as dist

JOINING = 120.0  # seconds for all ranks to connect to rank 0


LEFT = (
    b"."  # the last word of a rank that is done; any other word from rank 0 is a dead rank's number
)


_lines: list[socket.socket] = []  # to rank 0; on rank 0, to all others


# ---- a death ----


def watch() -> None:
    """From now until `leave`, this process ends within a second of the end of any other rank, and a line says whose.

    Call it on every rank, after the process group's start. A host that is cut off is noticed within a minute.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == 1:
        return
    server = _listen() if rank == 0 else None
    port, secret = (server.getsockname()[1], secrets.token_bytes(32)) if server else (0, b"")
    every = everywhere(
        (f"rank {rank} (process {os.getpid()} on {socket.gethostname()})", port, secret)
    )
    names, (_, port, secret) = [name for name, *_ in every], every[0]
    if server:
        lines = _accept(server, secret, world)
    else:
        line = socket.create_connection((os.environ["MASTER_ADDR"], port), JOINING)
        line.sendall(secret + rank.to_bytes(4, "big"))
        lines = {0: line}
    for line in lines.values():
        line.settimeout(None)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 6)):
            if hasattr(socket, option):
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        os.register_at_fork(
            after_in_child=line.close
        )  # a data worker would hold it open after our death
    _lines[:] = lines.values()
    threading.Thread(target=_listen_for_deaths, args=(rank, lines, names), daemon=True).start()


def leave() -> None:
    """Ends the watch when all ranks are done; the process group ends with it."""
    dist.barrier()
    for line in _lines:
        line.sendall(LEFT)
    _lines.clear()
    dist.destroy_process_group()


def _listen() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _accept(server: socket.socket, secret: bytes, world: int) -> dict[int, socket.socket]:
    """The other ranks' connections, by rank. Whoever does not know the secret is hung up on."""
    lines: dict[int, socket.socket] = {}
    server.settimeout(JOINING)
    with server:
        while len(lines) < world - 1:
            line, _ = server.accept()
            line.settimeout(5)
            try:
                hello = line.makefile("rb").read(36)
            except OSError:
                hello = b""
            if hmac.compare_digest(hello[:32], secret):
                lines[int.from_bytes(hello[32:], "big")] = line
            else:
                line.close()
    return lines


def _listen_for_deaths(rank: int, lines: dict[int, socket.socket], names: list[str]) -> None:
    dead = None
    with selectors.DefaultSelector() as selector:
        for other, line in lines.items():
            selector.register(line, selectors.EVENT_READ, other)
        while dead is None and selector.get_map():
            for key, _ in selector.select():
                try:
                    word = key.fileobj.recv(4)
                except OSError:  # reset, or no answer to keepalive probes
                    word = b""
                selector.unregister(key.fileobj)
                if word != LEFT:
                    dead = int.from_bytes(word, "big") if word else key.data
    if dead is None:
        return
    for line in lines.values() if rank == 0 else ():
        try:
            line.sendall(dead.to_bytes(4, "big"))
        except OSError:
            pass  # the dead one's
    if os.environ.get("LOCAL_RANK") == "0" or rank == (1 if dead == 0 else 0):  # once a host
        print(
            f"{names[dead]} has ended before the others, which end too; run the same command to resume",
            file=sys.stderr,
            flush=True,
        )
    os._exit(1)  # the main thread may be in a collective that never returns


def everywhere(value: object) -> list:
    """Each rank's value, by rank."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
