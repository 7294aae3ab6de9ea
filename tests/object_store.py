"""An S3 server of this machine that throttles, and is slow where it is told to be."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

SECRET = "s3cr3t-0123456789"
_THROTTLED = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


class Faults:
    """In front of a WSGI application: of every `period` requests the first `burst` are throttled.

    slow: objects whose key holds this text come after a pause and in small pieces.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()
        self.period, self.burst, self.slow = 0, 0, ""
        self.requests = self.throttled = self.slowed = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            self.requests += 1
            refuse = self.period > 0 and self.requests % self.period < self.burst
            self.throttled += refuse
        if refuse:
            # The body is read, as a server does, or the connection would break.
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("503 Slow Down", [("Content-Type", "application/xml"), ("Connection", "close")])
            return [_THROTTLED]
        answer = self._app(environ, start_response)
        if self.slow and environ["REQUEST_METHOD"] == "GET" and self.slow in environ["PATH_INFO"]:
            self.slowed += 1
            return _slowly(answer)
        return answer  # type: ignore[no-any-return]


def _slowly(answer: Iterable[bytes]) -> Iterator[bytes]:
    time.sleep(0.5)
    for data in answer:
        step = max(len(data) // 5, 1)
        for at in range(0, len(data), step):
            time.sleep(0.05)
            yield data[at : at + step]


@contextmanager
def s3_server() -> Iterator[tuple[str, Faults]]:
    """The address of a server and its faults, none at first; the server ends with the context."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    faults = Faults(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, faults, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        # The simulated store belongs to the process, and would keep what an earlier server was given.
        urllib.request.urlopen(f"{address}/moto-api/reset", data=b"").close()
        yield address, faults
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
