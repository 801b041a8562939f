"""Runs a command that may send no descriptor: python3 -c crowd.py COMMAND...

The kernel counts the descriptors that all processes of a user have sent and no one has received, and refuses more to a
process whose own limit of open files is lower than that count.
"""

import resource
import socket
import subprocess
import sys

LIMIT = 256
held = []
for _ in range(3):
    pair = socket.socketpair()
    socket.send_fds(pair[0], [b"x"], [0] * 200)
    held.append(pair)
lower = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
sys.exit(subprocess.run(sys.argv[1:], preexec_fn=lower).returncode)
