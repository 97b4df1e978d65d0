"""The Flask app behind the five sites: worlds, and one listener per site.

One process serves one port per site, as WebArena's containers do, so URLs, cookies and
placeholders behave the same. A request chooses its world by the header X-Pocket-World; without
it, it sees the world that a person browses. Under `/_pocket/` every port has what belongs to no
site: making and dropping worlds, health, style sheet and fonts.
"""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import matplotlib
from flask import Blueprint, Flask, Response, g, jsonify, request, send_file
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from jhima.pocket import SITES
from jhima.pocket.sites import gitlab, map, reddit, shopping, shopping_admin, shopping_rest
from jhima.pocket.sites.page import page, text
from jhima.pocket.sites.world import World

WORLD_HEADER = "X-Pocket-World"
MAX_WORLDS = 4096  # a leak of leases shows as an error here, not as a full memory
FILES = {
    "style.css": Path(__file__).parent / "static" / "style.css",
    # matplotlib's fonts: the same pixels on any machine
    "font.ttf": Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans-Bold.ttf"),
    "mono.ttf": Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSansMono-Bold.ttf"),
}


def make_app(full: bool = False, latency: float = 0.0) -> Flask:
    """The app with all five sites. Every page takes `latency` seconds longer, to measure with."""
    app = Flask(__name__, static_folder=None)
    app.url_map.strict_slashes = False  # WebArena's tasks write some pages with a final slash
    worlds: dict[str, World] = {"person": World(full)}

    @app.before_request
    def enter_world() -> Response | None:
        g.site = request.environ.get("pocket.site", "shopping")
        g.world, g.held = None, False
        if request.environ["PATH_INFO"].startswith(f"/{g.site}/_pocket/"):
            return None
        name = request.headers.get(WORLD_HEADER, "person")
        g.world = worlds.get(name)
        if g.world is None:
            return Response(f"no such world: {name!r}", 410, mimetype="text/plain")
        if latency:
            time.sleep(latency)
        g.world.lock.acquire()
        g.held = True
        return None

    @app.teardown_request
    def leave_world(_error: BaseException | None) -> None:
        if g.pop("held", False):
            g.world.lock.release()

    @app.errorhandler(404)
    def missing(_error: Exception) -> tuple[str, int]:
        return page("Not found", text("There is no such page.")), 404

    door = _door(worlds, full)
    for site in SITES:
        app.register_blueprint(door, url_prefix=f"/{site}/_pocket", name=f"door_{site}")
    for module in (shopping, shopping_admin, reddit, gitlab, map):
        app.register_blueprint(module.site, url_prefix=f"/{module.site.name}")
    app.register_blueprint(shopping_rest.rest, url_prefix="/shopping")
    return app


def _door(worlds: dict[str, World], full: bool) -> Blueprint:
    """The pages under /_pocket/."""
    door = Blueprint("door", __name__)
    counter = itertools.count(1)

    @door.get("/<any('style.css', 'font.ttf', 'mono.ttf'):name>")
    def file(name: str) -> Response:
        return send_file(FILES[name], max_age=86400)

    @door.get("/health")
    def health() -> Response:
        return jsonify(ok=True, worlds=len(worlds) - 1)

    @door.post("/worlds")
    def new_world() -> tuple[Response, int]:
        if len(worlds) > MAX_WORLDS:
            return jsonify(error=f"{MAX_WORLDS} worlds are open; are leases being returned?"), 503
        body = request.get_json(silent=True) or {}
        name = f"w{next(counter)}"
        worlds[name] = World(
            full=bool(body.get("full", full)),
            seed=int(body.get("seed", 0)),
            signed_in=bool(body.get("signed_in", False)),
        )
        return jsonify(world=name), 201

    @door.delete("/worlds/<name>")
    def drop_world(name: str) -> tuple[str, int]:
        if name == "person" or worlds.pop(name, None) is None:
            return "", 404
        return "", 204

    return door


# ---- listeners ----


class QuietHandler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # keep-alive: a page and its parts over one connection

    def log_request(self, *_args: object) -> None:
        pass


def listen(
    app: Flask, ports: dict[str, int], host: str = "127.0.0.1"
) -> tuple[dict[str, str], list[BaseWSGIServer]]:
    """Starts one listener per site (port 0: any free one) in daemon threads.

    Returns the sites' URLs, by WebArena's rules (the admin site's ends in /admin), and the
    servers to shut down.
    """
    urls, servers = {}, []
    for site in SITES:
        server = make_server(
            host,
            ports.get(site, 0),
            _site_app(app, site),
            threaded=True,
            request_handler=QuietHandler,
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        urls[site] = f"http://{host}:{server.server_port}"
        servers.append(server)
    urls["shopping_admin"] += "/admin"
    return urls, servers


def _site_app(app: Flask, site: str):
    """The app as one site's port shows it: every path begins with the site's name."""

    def wsgi(environ, start_response):
        environ["pocket.site"] = site
        environ["PATH_INFO"] = f"/{site}{environ['PATH_INFO']}"
        return app(environ, start_response)

    return wsgi
