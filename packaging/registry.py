#!/usr/bin/env python3
"""Serves packed npm packages and wheels on the loopback, as the registries would.

usage: registry.py DIRECTORY COMMAND...

Runs COMMAND with npm, pip and uv set to this registry, and exits with its status: so `npx -y ringfence` and
`uvx ringfence` can be tried word for word before anything is published.
"""

import base64
import hashlib
import html
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import threading
import urllib.parse


class Registry(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    directory = pathlib.Path()

    def do_GET(self):
        path = urllib.parse.unquote(self.path.split("?")[0])
        if path.startswith("/files/"):
            file = self.directory / pathlib.Path(path).name
            self.answer(file.read_bytes() if file.is_file() else None, "application/octet-stream")
        elif path.startswith("/simple/"):
            self.answer(self.list_wheels(path.strip("/").split("/")[-1]), "text/html")
        else:
            self.answer(self.describe_package(path.strip("/")), "application/json")

    do_HEAD = do_GET

    def describe_package(self, name):
        versions = {}
        for file in sorted(self.directory.glob("*.tgz")):
            with tarfile.open(file) as archive:
                manifest = json.load(archive.extractfile("package/package.json"))
            if manifest["name"] == name:
                digest = base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode()
                manifest["dist"] = {"tarball": self.link(file), "integrity": f"sha512-{digest}"}
                versions[manifest["version"]] = manifest
        if not versions:
            return None
        return json.dumps({"name": name, "dist-tags": {"latest": list(versions)[-1]}, "versions": versions}).encode()

    def list_wheels(self, name):
        files = sorted(self.directory.glob(f"{name}-*.whl"))
        links = "".join(f'<a href="{html.escape(self.link(file))}">{html.escape(file.name)}</a>' for file in files)
        return f"<!DOCTYPE html><html><body>{links}</body></html>".encode() if files else None

    def link(self, file):
        return f"http://{self.headers['Host']}/files/{urllib.parse.quote(file.name)}"

    def answer(self, body, kind):
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body or b"")

    def log_message(self, *_):
        pass


def main():
    Registry.directory = pathlib.Path(sys.argv[1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    index = f"{url}/simple/"
    settings = {
        "RINGFENCE_REGISTRY": url,
        "npm_config_registry": url,
        "PIP_INDEX_URL": index,
        "UV_DEFAULT_INDEX": index,
    }
    sys.exit(subprocess.run(sys.argv[2:], env={**os.environ, **settings}).returncode)


main()
