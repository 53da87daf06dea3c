"""Runs schemathesis from PyPI over the OpenAPI file of a server: no request may end in an error of the server, and every answer has to
be one that the file describes.

Run: python3 tests/serve/schema.py target/release/kiln [EXAMPLES]
"""

import os
import subprocess
import sys
import tempfile

from served import Server, install

PACKAGES = ["schemathesis==4.32.5"]


def main(program, examples):
    with tempfile.TemporaryDirectory() as folder:
        if not install(folder, PACKAGES):
            return
        server = Server(program, "--max-steps", "4", "--max-pixels", "4096", "--max-images", "2", "--queue", "1024", "--keep", "5")
        try:
            address = f"http://127.0.0.1:{server.port}"
            # One worker: Python 3.11 and 3.12 count the depth of syntax trees wrongly where threads parse at once (gh-106905), and
            # hypothesis parses. The seed makes two runs send the same requests.
            command = [sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json", "--max-examples", str(examples),
                       "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
                       "--exclude-path-regex", "/events$", "--request-timeout", "60", "--generation-database", "none", "--workers", "1", "--seed", "1"]
            result = subprocess.run(command, cwd=folder, env=os.environ)
            assert result.returncode == 0, "schemathesis found failures"
            server.stop()
        finally:
            server.kill()
    print("schemathesis: passed")


main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 50)
