#!/usr/bin/env python3
"""Serves a folder on 127.0.0.1 for the test of the install scripts, and writes its port to a file.

    server.py FOLDER PORT_FILE

Below /cut/ an archive ends in its middle, after the length of the whole was announced.
"""

import functools
import http.server
import io
import os
import sys
from pathlib import Path


class Handler(http.server.SimpleHTTPRequestHandler):
    is_cut = False

    def send_head(self):
        self.is_cut = self.path.startswith("/cut/") and self.path.endswith((".xz", ".zip"))
        self.path = self.path.replace("/cut/", "/releases/", 1)
        return super().send_head()

    def copyfile(self, source, outputfile):
        whole = source.read()
        super().copyfile(io.BytesIO(whole[: len(whole) // 2] if self.is_cut else whole), outputfile)

    def log_message(self, *_):
        pass


def main() -> None:
    folder, port_file = sys.argv[1], Path(sys.argv[2])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as server:
        partial = port_file.with_suffix(".new")
        partial.write_text(str(server.server_port))
        os.replace(partial, port_file)
        server.serve_forever()


main()
