#!/usr/bin/env python3
"""Makes the wheel for `uvx ringfence`, `pipx` and `pip`: the binary as a script, and metadata.

usage: wheel.py BINARY DIRECTORY VERSION

A wheel is a zip archive of a fixed layout, so nothing but zipfile is needed.
"""

import base64
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time
import zipfile

TAG = "py3-none-manylinux_2_17_x86_64"
WHEEL = f"Wheel-Version: 1.0\nGenerator: ringfence\nRoot-Is-Purelib: false\nTag: {TAG}\n"
HERE = pathlib.Path(__file__).parent


def write_metadata(version):
    server = json.loads((HERE / "server.json").read_text())
    readme = (HERE / "wheel" / "README.md").read_text()
    return (
        f"Metadata-Version: 2.4\nName: ringfence\nVersion: {version}\n"
        f"Summary: {server['description']}\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\n"
        f"Keywords: mcp,sandbox,agent\nRequires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n"
        # The registry of MCP servers looks for this name to see who owns the package.
        f"{readme}\n<!-- mcp-name: {server['name']} -->\n"
    ).encode()


def main():
    binary, directory, version = sys.argv[1:]
    notices = subprocess.run([HERE / "notices.py"], check=True, stdout=subprocess.PIPE).stdout
    info = f"ringfence-{version}.dist-info"
    files = [
        (f"ringfence-{version}.data/scripts/ringfence", pathlib.Path(binary).read_bytes(), 0o755),
        (f"{info}/METADATA", write_metadata(version), 0o644),
        (f"{info}/WHEEL", WHEEL.encode(), 0o644),
        (f"{info}/licenses/LICENSE", (HERE.parent / "LICENSE").read_bytes(), 0o644),
        (f"{info}/licenses/NOTICES", notices, 0o644),
    ]
    record = ""
    for name, content, _ in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644))

    path = pathlib.Path(directory) / f"ringfence-{version}-{TAG}.whl"
    date = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, content, mode in files:
            entry = zipfile.ZipInfo(name, date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100000 | mode) << 16
            wheel.writestr(entry, content)
    print(path)


main()
