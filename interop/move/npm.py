"""Drives the API of Nginx Proxy Manager: `make` makes hosts of each kind, `ask` sends them requests and prints what comes back,
`origin` answers for their upstreams."""

import base64
import http.client
import http.server
import json
import re
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid

API = "http://127.0.0.1:3000"
ORIGIN = 9000
WEBSOCKET = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"}


def call(path, content=None, method=None, token=None, kind="application/json"):
    """Asks the API. Ends the program with its words if it refuses."""
    data = content if isinstance(content, bytes) else None if content is None else json.dumps(content).encode()
    fields = {"Content-Type": kind} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(API + path, data=data, headers=fields, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        sys.exit(f"{path}: {error.code} {error.read().decode()}\n{json.dumps(content) if data is not content else ''}")


def token():
    found = call("/tokens", {"identity": "admin@shop.example", "secret": "correct horse battery"})
    return found["token"]


def multipart(files):
    mark = uuid.uuid4().hex
    parts = b"".join(
        f'--{mark}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}.pem"\r\n'
        f"Content-Type: application/octet-stream\r\n\r\n".encode() + content + b"\r\n"
        for name, content in files.items()
    )
    return parts + f"--{mark}--\r\n".encode(), f"multipart/form-data; boundary={mark}"


def certificate(key):
    """A certificate of one's own, uploaded."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "/tmp/key.pem", "-out", "/tmp/cert.pem", "-days", "3", "-subj",
         "/CN=tls.example", "-addext", "subjectAltName=DNS:tls.example,DNS:old-tls.example"],
        check=True, stderr=subprocess.DEVNULL)
    made = call("/nginx/certificates", {"provider": "other", "nice_name": "own"}, token=key)
    files = {name: open(f"/tmp/{file}.pem", "rb").read() for name, file in (("certificate", "cert"), ("certificate_key", "key"))}
    content, kind = multipart(files)
    call(f"/nginx/certificates/{made['id']}/upload", content, token=key, kind=kind)
    return made["id"]


def make():
    call("/users", {"name": "Admin", "nickname": "Admin", "email": "admin@shop.example", "roles": ["admin"], "is_disabled": False,
                    "auth": {"type": "password", "secret": "correct horse battery"}})
    key = token()
    own = certificate(key)
    guarded = call("/nginx/access-lists", {
        "name": "staff", "satisfy_any": False, "pass_auth": False,
        "items": [{"username": "ann", "password": "secret"}], "clients": [{"address": "127.0.0.0/8", "directive": "allow"}],
    }, token=key)["id"]
    either = call("/nginx/access-lists", {
        "name": "either", "satisfy_any": True, "pass_auth": True,
        "items": [{"username": "bob", "password": "geheim"}], "clients": [{"address": "192.0.2.0/24", "directive": "allow"}],
    }, token=key)["id"]
    proxy = lambda name, **more: call("/nginx/proxy-hosts", {
        "domain_names": [name], "forward_scheme": "http", "forward_host": "127.0.0.1", "forward_port": ORIGIN} | more, token=key)
    proxy("plain.example")
    proxy("full.example", block_exploits=True, caching_enabled=True, allow_websocket_upgrade=True)
    proxy("staff.example", access_list_id=guarded)
    proxy("either.example", access_list_id=either)
    proxy("tls.example", certificate_id=own, ssl_forced=True, http2_support=True, hsts_enabled=True, hsts_subdomains=True,
          allow_websocket_upgrade=True)
    location = {"forward_scheme": "http", "forward_host": "127.0.0.1", "forward_port": ORIGIN}
    proxy("parts.example", block_exploits=True, allow_websocket_upgrade=True, locations=[
        {"path": "/api"} | location, {"path": "/other/"} | location | {"forward_host": "127.0.0.1/base"},
        {"path": "~ \\.php$"} | location | {"advanced_config": "add_header X-Part php always;"},
    ])
    proxy("own.example", advanced_config='client_max_body_size 1k;\nadd_header X-Own "$host $scheme" always;\n'
          'location /fixed { return 200 "fixed\\n"; }\nlocation ~* ^/img/(.+)$ { rewrite ^/img/(.*)$ /pictures/$1 break; '
          'include conf.d/include/proxy.conf; }')
    # What it gives to nginx -t before it keeps it: an error has to come back, and the host to be off line.
    broken = proxy("broken.example", advanced_config="no_such_directive x;")
    seen = call(f"/nginx/proxy-hosts/{broken['id']}", token=key)
    if seen["meta"].get("nginx_online") is not False or "no_such_directive" not in (seen["meta"].get("nginx_err") or ""):
        sys.exit(f"a host with a mistake is told as {seen['meta']}")
    redirect = lambda name, **more: call("/nginx/redirection-hosts", {
        "domain_names": [name], "forward_scheme": "auto", "forward_domain_name": "new.example", "forward_http_code": 301} | more, token=key)
    redirect("old.example", preserve_path=True, block_exploits=True)
    redirect("old-tls.example", forward_scheme="https", forward_http_code=302, certificate_id=own, ssl_forced=False)
    call("/nginx/dead-hosts", {"domain_names": ["dead.example"]}, token=key)
    call("/nginx/streams", {"incoming_port": 7000, "forwarding_host": "127.0.0.1", "forwarding_port": ORIGIN,
                            "tcp_forwarding": True, "udp_forwarding": False}, token=key)
    for kind in ("proxy-hosts", "redirection-hosts", "dead-hosts", "streams"):
        for host in call(f"/nginx/{kind}", token=key):
            if host["meta"].get("nginx_online") is not True and host["id"] != broken["id"]:
                sys.exit(f"{kind} {host['id']} is off line: {host['meta']}")
    # A host that is changed, switched off and on, and removed.
    gone = proxy("gone.example")["id"]
    call(f"/nginx/proxy-hosts/{gone}/disable", {}, token=key)
    call(f"/nginx/proxy-hosts/{gone}/enable", {}, token=key)
    call(f"/nginx/proxy-hosts/{gone}", method="DELETE", token=key)
    call("/settings/default-site", {"value": "444", "meta": {}}, method="PUT", token=key)
    call("/settings/default-site", {"value": "html", "meta": {"html": "<p>nobody</p>"}}, method="PUT", token=key)


class Origin(http.server.BaseHTTPRequestHandler):
    """Shows what it was asked. Over a WebSocket it sends back what comes."""

    protocol_version = "HTTP/1.1"

    def reply(self):
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Upgrade", "").lower() == "websocket":
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.end_headers()
            self.wfile.write(self.rfile.read(4))
            self.close_connection = True
            return
        fields = "".join(f"{name}: {value}\n" for name, value in sorted(self.headers.items()))
        text = f"{self.command} {self.path}\n{fields}{content!r}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Cache-Control", "max-age=60")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_POST = do_HEAD = do_PUT = do_OPTIONS = reply

    def log_message(self, *_):
        pass


REQUESTS = [
    *[(host, "GET", "/", {}, None) for host in (
        "plain.example", "full.example", "staff.example", "either.example", "tls.example", "parts.example", "own.example", "broken.example",
        "old.example", "old-tls.example", "dead.example", "gone.example", "nobody.example")],
    ("plain.example", "POST", "/post?a=b", {"Content-Type": "text/plain"}, b"content"),
    ("plain.example", "HEAD", "/", {}, None),
    ("plain.example", "GET", "/.well-known/acme-challenge/none", {}, None),
    ("full.example", "GET", "/style.css", {}, None),
    ("full.example", "GET", "/style.css", {}, None),
    ("full.example", "GET", "/?x=base64_encode(a)", {}, None),
    ("full.example", "GET", "/?a=<script>alert(1)</script>", {}, None),
    ("full.example", "GET", "/?a=../../etc/passwd", {}, None),
    ("full.example", "GET", "/?id=union+select+1", {}, None),
    ("full.example", "GET", "/?a=http://b.example/", {}, None),
    ("full.example", "GET", "/socket", WEBSOCKET, b"ping"),
    ("plain.example", "GET", "/socket", WEBSOCKET, b"ping"),
    ("full.example", "GET", "/", {"User-Agent": "libwww-perl/6"}, None),
    ("staff.example", "GET", "/", {"Authorization": "Basic " + base64.b64encode(b"ann:secret").decode()}, None),
    ("staff.example", "GET", "/", {"Authorization": "Basic " + base64.b64encode(b"ann:wrong").decode()}, None),
    ("either.example", "GET", "/", {"Authorization": "Basic " + base64.b64encode(b"bob:geheim").decode()}, None),
    ("parts.example", "GET", "/api", {}, None),
    ("parts.example", "GET", "/api/x?y=z", {}, None),
    ("parts.example", "GET", "/other/x", {}, None),
    ("parts.example", "GET", "/a.php", {}, None),
    ("own.example", "GET", "/fixed", {}, None),
    ("own.example", "GET", "/img/a.png", {}, None),
    ("own.example", "POST", "/", {}, b"x" * 2000),
    ("old.example", "GET", "/a/b?c=d", {}, None),
    ("tls.example", "GET", "/", {"X-Forwarded-Proto": "https"}, None),
]
SHOWN = ("location", "strict-transport-security", "x-part", "x-own", "x-served-by", "www-authenticate", "upgrade", "content-type", "cache-control",
         "x-cache-status", "alt-svc")


def ask_one(connection, request):
    host, method, target, fields, content = request
    try:
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", host)
        for name, value in fields.items():
            connection.putheader(name, value)
        if content is not None and "Upgrade" not in fields:
            connection.putheader("Content-Length", str(len(content)))
        connection.endheaders(content)
        answer = connection.getresponse()
        text = answer.fp.read(4) if answer.status == 101 else answer.read()
        # `expires` at a time of the day.
        value = lambda name: re.sub("max-age=[0-9]+", "max-age=N", answer.getheader(name))
        shown = "; ".join(f"{name}: {value(name)}" for name in SHOWN if answer.getheader(name))
        # Pages of errors name the server.
        body = "" if b"<center>" in text else text.decode(errors="replace").replace("\n", "|")
        return f"{answer.status} {shown} {body}"
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


def named(name):
    """Context that has a name in the handshake and trusts any certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    sock = socket.create_connection(("127.0.0.1", 443), timeout=10)
    connection = http.client.HTTPConnection("127.0.0.1", 443, timeout=10)
    connection.sock = context.wrap_socket(sock, server_hostname=name)
    return connection


def ask():
    for request in REQUESTS:
        print(*request[:3], list(request[3]), ask_one(http.client.HTTPConnection("127.0.0.1", 80, timeout=10), request))
    for request in REQUESTS:
        try:
            answer = ask_one(named(request[0]), request)
        except OSError as error:
            answer = type(error).__name__
        print("TLS", *request[:3], list(request[3]), answer)
    print("stream", ask_one(http.client.HTTPConnection("127.0.0.1", 7000, timeout=10), ("x", "GET", "/", {}, None)))
    print("HTTP/2", subprocess.run(
        ["curl", "-sk", "--http2", "--resolve", "tls.example:443:127.0.0.1", "-w", " %{http_version}", "https://tls.example/h2"],
        capture_output=True, text=True).stdout.replace("\n", "|"))


def origin():
    http.server.ThreadingHTTPServer(("127.0.0.1", ORIGIN), Origin).serve_forever()


if __name__ == "__main__":
    {"make": make, "ask": ask, "origin": origin}[sys.argv[1]]()
