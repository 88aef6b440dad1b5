"""An S3 server on loopback: moto, one request after the other."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager

SERVER = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

class Quiet(WSGIRequestHandler):
    def log(self, *_):
        pass

# One thread: moto's threaded server lets two writers win a conditional put.
application = DomainDispatcherApplication(create_backend_app)
server = make_server("127.0.0.1", 0, application, threaded=False, request_handler=Quiet)
print(server.port, flush=True)
server.serve_forever()
"""


@contextmanager
def serve_s3(python=sys.executable):
    """A server for a block, as its address. `python`: one that has moto."""
    with subprocess.Popen([python, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()
