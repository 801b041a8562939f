#!/usr/bin/env python3
"""Runs a program that knows no proxy: through.py ADDRESS:PORT PROGRAM [ARGUMENTS]

In the fence the only way out is the proxy that HTTPS_PROXY names. Here the same port is opened on the run's own
loopback, and what comes is passed on to ADDRESS:PORT by CONNECT. Other addresses stay shut, whatever stands here: the
operator's `allow_addresses` decides.
"""

import os
import socket
import subprocess
import sys
import threading
from urllib.parse import urlsplit

target, command = sys.argv[1], sys.argv[2:]
proxy = urlsplit(os.environ["HTTPS_PROXY"])


def pump(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)


def serve(client):
    way = socket.create_connection((proxy.hostname, proxy.port))
    way.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        data = way.recv(1)
        if not data:
            break
        head += data
    if b" 200 " not in head.split(b"\r\n")[0] + b" ":
        print(head.decode(errors="replace").strip(), file=sys.stderr)
        client.close()
        return
    threading.Thread(target=pump, args=(client, way), daemon=True).start()
    pump(way, client)


def listen(listener):
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve, args=(client,), daemon=True).start()


listener = socket.create_server(("127.0.0.1", int(target.rsplit(":", 1)[1])))
threading.Thread(target=listen, args=(listener,), daemon=True).start()
sys.exit(subprocess.run(command).returncode)
