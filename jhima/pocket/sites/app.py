"""The Flask app behind the five sites: worlds, login, and one listener per site.

One process serves one port per site, as WebArena's containers do, so URLs, cookies and placeholders behave the
same. A request chooses its world by the header X-Pocket-World; without it, it sees the world that a person
browses. `/_pocket/` on every port is the arena's own door: make a world, drop it, ask for health.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import matplotlib
from flask import (
    Flask,
    Response,
    g,
    jsonify,
    request,
    send_file,
)
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from jhima.pocket import SITES
from jhima.pocket.sites import gitlab, map, reddit, shopping, shopping_admin
from jhima.pocket.sites.page import page, text
from jhima.pocket.sites.world import World

WORLD_HEADER = "X-Pocket-World"


MAX_WORLDS = 4096  # a leak of leases shows as an error here, not as a full memory


def make_app(full: bool = False, latency: float = 0.0) -> Flask:
    """The app with all five sites. `latency` seconds are slept in every page, to measure with."""
    app = Flask(__name__, static_folder=None)
    app.url_map.strict_slashes = (
        False  # WebArena's tasks name some pages with a final slash, some without
    )
    worlds: dict[str, World] = {"person": World(full)}
    counter = iter(range(1, 1 << 62))
    fonts = f"{matplotlib.get_data_path()}/fonts/ttf"  # shipped with the app: same pixels anywhere

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

    for site in SITES:
        app.add_url_rule(
            f"/{site}/_pocket/style.css", f"style_{site}", lambda: app_file("style.css")
        )
        for name, file in (("font", "DejaVuSans-Bold.ttf"), ("mono", "DejaVuSansMono-Bold.ttf")):
            app.add_url_rule(
                f"/{site}/_pocket/{name}.ttf",
                f"{name}_{site}",
                lambda file=file: send_file(f"{fonts}/{file}", max_age=86400),
            )
        app.add_url_rule(
            f"/{site}/_pocket/health",
            f"health_{site}",
            lambda: jsonify(ok=True, worlds=len(worlds) - 1),
        )

    def new_world() -> tuple[Response, int]:
        if len(worlds) > MAX_WORLDS:
            return jsonify(error=f"{MAX_WORLDS} worlds are open; are leases being returned?"), 503
        body = request.get_json(silent=True) or {}
        name = f"w{next(counter)}"
        worlds[name] = World(
            bool(body.get("full", full)),
            int(body.get("seed", 0)),
            bool(body.get("signed_in", False)),
        )
        return jsonify(world=name), 201

    def drop_world(name: str) -> tuple[str, int]:
        return ("", 204) if name != "person" and worlds.pop(name, None) else ("", 404)

    for site in SITES:
        app.add_url_rule(f"/{site}/_pocket/worlds", f"new_{site}", new_world, methods=["POST"])
        app.add_url_rule(
            f"/{site}/_pocket/worlds/<name>", f"drop_{site}", drop_world, methods=["DELETE"]
        )
    for module in (shopping, shopping_admin, reddit, gitlab, map):
        app.register_blueprint(module.site, url_prefix="/" + module.site.name)
    return app


def app_file(name: str) -> Response:
    return send_file(Path(__file__).parent / "static" / name, max_age=86400)


# ---- listeners ----


class QuietHandler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # keep-alive: a page and its parts over one connection

    def log_request(self, *_args: object) -> None:
        pass


def listen(
    app: Flask, ports: dict[str, int], host: str = "127.0.0.1"
) -> tuple[dict[str, str], list[BaseWSGIServer]]:
    """Starts one listener per site (port 0: any free one) in daemon threads.

    Returns the sites' URLs, by WebArena's rules (the admin site's ends in /admin), and the servers to shut down.
    """
    urls, servers = {}, []
    for site in SITES:

        def wsgi(environ, start_response, site=site):
            environ["pocket.site"] = site
            environ["PATH_INFO"] = f"/{site}{environ['PATH_INFO']}"
            return app(environ, start_response)

        server = make_server(
            host, ports.get(site, 0), wsgi, threaded=True, request_handler=QuietHandler
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        urls[site] = f"http://{host}:{server.server_port}" + (
            "/admin" if site == "shopping_admin" else ""
        )
        servers.append(server)
    return urls, servers
