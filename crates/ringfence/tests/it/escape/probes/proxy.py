import re

# Asks every proxy that the environment names for the port on this machine, in every way a proxy can be asked.
port = sys.argv[1]
found = {value for name, value in os.environ.items() if name.lower().endswith("_proxy") and "://" in value}
say("proxies", len(found))
hosts = ["127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "127.1", "2130706433", "0x7f.1", "017700000001",
         "localhost.", "LOCALHOST", "example.org@127.0.0.1", "127.0.0.1%00.example.org"]


def ask(address, text):
    link = socket.create_connection(address)
    link.sendall(text)
    return link.recv(1000)


for proxy in sorted(found):
    host, number = re.search(r"//(?:[^@/]*@)?([^:/]+):(\d+)", proxy).groups()
    address = (host, int(number))
    for name in hosts:
        for request in [f"CONNECT {name}:{port} HTTP/1.1\r\nHost: example.org\r\n\r\n",
                        f"GET http://{name}:{port}/ HTTP/1.1\r\nHost: example.org\r\n\r\n",
                        f"GET http://example.org@{name}:{port}/ HTTP/1.0\r\n\r\n"]:
            tried("http", lambda: ask(address, request.encode()))
        plain = name.strip("[]").encode()
        for target in [b"\x03" + bytes([len(plain)]) + plain, b"\x01\x7f\x00\x00\x01"]:
            tried("socks", lambda: ask(address, b"\x05\x01\x00\x05\x01\x00" + target + struct.pack(">H", int(port))))
