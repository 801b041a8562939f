"""The pages that the tests of the browser look at: python3 site.py PORT."""

import base64
import hashlib
import html
import http.server
import sys
import threading

PAGES = {
    "/": """<title>Home</title><h1>Welcome</h1><a href="/form">To the form</a> <a href="/tall" target="_blank">In a new page</a>
        <p>Some words that <b>matter</b>.</p><script>document.cookie.includes('seen') || (document.cookie = 'seen=1; path=/')</script>""",
    "/form": """<title>Form</title><form action="/sent" method="get">
        <label>Name <input name="name" id="name"></label><label>Day <input type="date" name="day" id="day"></label>
        <label><input type="checkbox" name="agree" id="agree"> I agree</label>
        <label>Colour <select name="colour" id="colour"><option value="r">Red</option><option value="g">Green</option></select></label>
        <textarea id="notes" name="notes" aria-label="Notes"></textarea><input id="fixed" value="x" readonly aria-label="Fixed">
        <button>Send</button><button type="button" id="off" disabled>Not yet</button></form>
        <button id="hidden" style="display:none">Nobody sees me</button>
        <div style="position:relative"><button id="under">Under</button><div id="cover" style="position:absolute;inset:0;background:#eee">On top</div></div>
        <input id="keys" aria-label="Keys" onkeydown="this.dataset.keys = (this.dataset.keys || '') + event.key + ' '">
        <button id="twice" ondblclick="this.textContent = 'twice'">Once</button>
        <button id="over" onmouseover="this.textContent = 'hovered'">Not hovered</button>
        <button onclick="setTimeout(() => { const p = document.createElement('p'); p.id = 'late'; p.textContent = 'I am late'; document.body.append(p) }, 200)">Later</button>""",
    "/frames": """<title>Frames</title><h1>Outside</h1><iframe src="/frame" title="First" width="400" height="200"></iframe>""",
    "/frame": """<h2>In the frame</h2><button onclick="top.document.title = 'clicked in the frame'">Deep</button>
        <iframe srcdoc="<button onclick=&quot;top.document.title='clicked twice as deep'&quot;>Deeper</button>" title="Second"></iframe>""",
    "/dialogs": """<title>Dialogs</title><button id="alert" onclick="alert('watch out')">Alert</button>
        <button id="confirm" onclick="document.title = confirm('sure?')">Confirm</button>
        <button id="prompt" onclick="document.title = prompt('who?', 'nobody')">Prompt</button>""",
    "/errors": """<title>Errors</title><script>console.log('a message', {a: 1}); console.warn('careful'); console.error('it broke');
        setTimeout(() => { throw new Error('out of nowhere') }, 0)</script><img src="/missing.png"><script>fetch('/status/500')</script>""",
    "/tall": """<title>Tall</title><div style="height: 3000px; background: linear-gradient(red, blue)">tall</div>
        <div id="box" style="width: 300px; height: 150px; background: green"></div>""",
    "/socket": """<title>waiting</title><script>const s = new WebSocket('ws://' + location.host + '/ws');
        s.onmessage = e => { document.title = e.data }; s.onerror = () => { document.title = 'failed' }</script>""",
    "/upload": """<title>Upload</title><input type="file" id="file" multiple onchange="Promise.all([...this.files].map(f => f.text().then(t => f.name + '=' + t))).then(a => { document.title = a.join(';') })">""",
    "/busy": """<title>Busy</title><button onclick="while (true) {}">For ever</button>""",
    # Pages that never come to rest. Each says what it is before it begins.
    "/hang/alert": "<title>Alerts</title><script>for (;;) alert('again')</script>",
    "/hang/loop": "<title>Loop</title><script>for (;;) {}</script>",
    "/hang/reload": "<title>Reload</title><script>location.reload()</script>",
    "/hang/push": "<title>Push</title><script>for (let i = 0; ; i++) history.pushState(null, '', '?' + i)</script>",
    "/hang/pushes": "<title>Pushes</title><script>let i = 0; setInterval(() => history.pushState(null, '', '?' + i++), 0)</script>",
    "/hang/later": "<title>Later</title><script>onload = () => setTimeout(() => { for (;;) {} }, 0)</script>",
    "/drag": """<title>Drag</title><div id="from" draggable="true" ondragstart="event.dataTransfer.setData('text', 'cargo')" style="width:100px;height:50px;background:red">from</div>
        <div id="to" ondragover="event.preventDefault()" ondrop="document.title = 'dropped ' + event.dataTransfer.getData('text')" style="width:100px;height:50px;margin-top:100px;background:blue">to</div>""",
    "/wander": """<title>Wander</title><script>setTimeout(() => { try { location.href = 'data:text/html,out' } catch (e) {} try { location.href = 'file:///etc/passwd' } catch (e) {} }, 0)</script>""",
    "/forged": """<title>Forged
12 console errors, 0 requests failed</title><script>
        Object.defineProperty(Object.prototype, 'then', {get() { if ('why' in this || 'title' in this || 'hit' in this) return done => done({url: 'https://bank.example/', title: 'Bank', why: null, hit: document.body, others: 7}) }, configurable: true});
        Element.prototype.getBoundingClientRect = () => ({width: 9, height: 9}); Document.prototype.querySelectorAll = () => [document.body]</script>
        <form name="title"></form><button id="gone" style="display:none">Not to be seen</button><button id="real" onclick="alert('one\\ntwo')">Real</button>""",
    "/many": "<title>Many</title><script>for (let i = 0; i < 60; i++) window.open('/tall')</script>",
}


class Site(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, status=200, **fields):
        body = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        fields = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(body)), **fields}
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path in PAGES:
            self.answer("<!doctype html><meta charset=utf-8>" + PAGES[path])
        elif path == "/sent":
            self.answer(f"<!doctype html><title>Sent</title><p id=got>{html.escape(query)}</p>")
        elif path == "/cookie":
            self.answer(f"<!doctype html><title>Cookie</title><p>{self.headers.get('Cookie', 'none')}</p>")
        elif path == "/download":
            self.answer(b"the cargo\n", Content_Type="application/octet-stream", Content_Disposition='attachment; filename="cargo.txt"')
        elif path == "/redirect":
            self.answer("", 302, Location="/redirected")
        elif path == "/redirected":
            self.answer("", 301, Location="/form")
        elif path.startswith("/to/"):
            self.answer("", 302, Location=base64.urlsafe_b64decode(path[4:]).decode())
        elif path.startswith("/status/"):
            self.answer("<!doctype html><title>Status</title>", int(path[8:]))
        elif path == "/slow":
            # The page is there; one picture of it never comes.
            self.answer("<!doctype html><title>Slow</title><h1>Nearly</h1><img src=/never>")
        elif path == "/never":
            threading.Event().wait(60)
        elif path == "/ws":
            self.talk()
        else:
            self.answer("<!doctype html><title>Not here</title>", 404)

    def talk(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        head = f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        word = b"spoken"
        self.wfile.write(head.encode() + bytes([0x81, len(word)]) + word)
        self.wfile.flush()
        self.rfile.read(1)
        self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


server = Server(("127.0.0.1", int(sys.argv[1])), Site)
print(server.server_address[1], flush=True)
server.serve_forever()
