#!/usr/bin/env python3
"""Prints a token for the audience `ringfence` that is valid for ten minutes: token.py SECRET"""

import base64
import hashlib
import hmac
import json
import sys
import time


def encode(content):
    return base64.urlsafe_b64encode(content).rstrip(b"=")


claims = {"sub": "somebody", "aud": "ringfence", "exp": int(time.time()) + 600}
signed = encode(b'{"alg":"HS256","typ":"JWT"}') + b"." + encode(json.dumps(claims).encode())
signature = hmac.new(sys.argv[1].encode(), signed, hashlib.sha256).digest()
print((signed + b"." + encode(signature)).decode(), end="")
