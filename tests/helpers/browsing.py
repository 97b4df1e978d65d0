"""A small troublesome site and a real Chromium, for the tests of the browser."""

import os
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from jhima.actions import Action

GRID = """<style>body { margin: 0 } button { position: absolute; width: 24px; height: 24px; \
border: 0 }</style>
<body><script>hits = []; for (let i = 0; i < 196; i++) {
  const b = document.createElement('button');
  b.style.left = i % 14 * 24 + 'px'; b.style.top = Math.floor(i / 14) * 24 + 'px';
  b.onmousedown = e => hits.push([i, e.button, e.detail]); document.body.append(b); }</script>"""
FORM = """<form action=/got><input name=a autofocus><input name=b><button>ok</button></form>\
<textarea></textarea>"""
LINKS = """<style>a, button, input { display: block; height: 30px; margin: 0 } body { margin: 0 \
}</style>
<a href=/slow target=_blank>tab</a><a href=http://{foreign}/x>foreign</a><a href=/away>redirect</a>
<a href=http://{foreign}/y target=_blank>foreign tab</a><a href=/file>file</a><input type=file>
<button onclick="alert('Delete it?'); document.title = 'deleted'">alert</button>
<a href=/silent>silent</a><a href=/500>500</a>
<button onclick="window.open('/pop')">pop</button>"""
LATE = """<style>body { margin: 0 } button { display: block; height: 30px }</style>
<button onclick="fetch('/slow').then(r => setTimeout(() => document.body.style.background = \
'red', 40))">go</button>
<button onclick="setInterval(() => fetch('/late?' + Math.random()), 20)">poll</button>
<button onclick="while (true);">busy</button>"""
MOVES = """<div style="height: 4000px">tall</div>
<script>seen = []; for (const kind of ['mousedown', 'mousemove', 'mouseup'])
  addEventListener(kind, e => seen.push([e.type, e.clientX, e.clientY]))</script>"""
PAGES = {
    "/grid": GRID,
    "/form": FORM,
    "/links": LINKS,
    "/late": LATE,
    "/moves": MOVES,
    "/pop": "<button onclick='window.close()' style='height: 40px'>close</button>",
}


class Site(ThreadingHTTPServer):
    """Serves PAGES and a few troublesome paths; `asked` are the paths that were asked for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url, self.foreign, self.asked = (
            f"http://127.0.0.1:{self.server_port}",
            "example.com",
            [],
        )
        self.over = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, _request, _address):
        pass  # a browser that goes away in mid-request


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        site, path = self.server, self.path.split("?")[0]
        site.asked.append(self.path)
        if path == "/silent":
            site.over.wait()
        if path == "/slow":
            time.sleep(0.3)
        self.send_response({"/500": 500, "/away": 302, "/loop": 302}.get(path, 200))
        if path == "/away":
            self.send_header("Location", f"http://{site.foreign}/z")
        if path == "/loop":
            self.send_header("Location", "/loop")
        if path == "/file":
            self.send_header("Content-Disposition", "attachment; filename=a.txt")
        self.send_header("Content-Type", "text/html")
        body = (
            f"<title>{path}</title>" + PAGES.get(path, path).replace("{foreign}", site.foreign)
        ).encode()
        self.send_header("Content-Length", str(len(body) + (1000 if path == "/endless" else 0)))
        self.end_headers()
        self.wfile.write(body)
        if path == "/endless":
            site.over.wait()

    def log_message(self, *_args):
        pass


def children(pid: int) -> list[int]:
    """This process's descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    direct = [child for child, parent in parents.items() if parent == pid]
    return direct + [grandchild for child in direct for grandchild in children(child)]


def chromiums(flag: str = "") -> list[int]:
    """Pids of our Chromium processes whose command line has `flag`; "--remote-debugging-pipe" is
    the main one's.
    """
    found = []
    for pid in children(os.getpid()):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if "chrom" in line.split("\0")[0] and flag in line:
                found.append(pid)
    return found


def running(pids: list[int]) -> list[int]:
    """Those that still run (a zombie does not)."""

    def runs(pid):
        with suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return False

    return [pid for pid in pids if runs(pid)]


def at(session, x, y, **more):
    return session.perform(Action("click", x=x, y=y, **more))


def key(*keys, **more):
    return Action("key", keys=keys, **more)
