"""Sets of public keys, and a server on this machine that publishes them."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import trustme
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def jwk(key: Any, **fields: object) -> dict[str, Any]:
    """Return a key of ``cryptography`` as a JSON Web Key."""
    kinds: dict[type, Any] = {
        rsa.RSAPublicKey: RSAAlgorithm,
        rsa.RSAPrivateKey: RSAAlgorithm,
        ec.EllipticCurvePublicKey: ECAlgorithm,
        ed25519.Ed25519PublicKey: OKPAlgorithm,
    }
    (algorithm,) = (each for kind, each in kinds.items() if isinstance(key, kind))
    found = json.loads(algorithm.to_jwk(key))
    # The library states operations, which others rarely do.
    found.pop("key_ops", None)
    return {**found, **fields}


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


@contextmanager
def served(answers: dict[str, tuple[int, bytes]], ca: trustme.CA | None = None) -> Iterator[str]:
    """Serve answers by path on this machine, and yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers[self.path]
            self.send_response(status)
            if status == 302:
                self.send_header("Location", body.decode())
                body = b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("127.0.0.1").configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http{'' if ca is None else 's'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
