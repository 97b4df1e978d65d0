"""The one HTTP server of the tests' stub sites."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """A server in a thread, as a context manager: `url` inside it. A site derives from it and
    has an `answer`: method, path, headers and body -> status, headers and text.
    """

    port = 0
    answer: Callable

    def __enter__(self):
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.answer, self.server.daemon_threads = self.answer, True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        return self

    def __exit__(self, *_error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, headers, text = self.server.answer(self.command, self.path, self.headers, body)
        self.send_response(status)
        for name, value in (
            {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(text.encode()))}
            | headers
        ).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    do_POST = do_GET

    def log_message(self, *_arguments: object) -> None:
        pass
