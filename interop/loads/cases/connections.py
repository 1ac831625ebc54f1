"""Connections: new ones, TLS, many at a time, tunnels and event streams."""

from case import ROOT, Case, proxy, request, upstream

# TLS as a site has it that resumes sessions by a cache.
SESSIONS = "ssl_protocols TLSv1.2 TLSv1.3; ssl_session_cache shared:SSL:10m; ssl_session_timeout 1d; ssl_session_tickets off;"
CLOSE = "Connection: close"
TUNNEL = """location / { proxy_pass http://o; proxy_http_version 1.1; proxy_read_timeout 1h;
    proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }"""
WEBSOCKET = request("/ws", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                    "Sec-WebSocket-Version: 13")
EVENTS = proxy("o", "proxy_buffering off; proxy_read_timeout 1h;")


def cases():
    one, last = request("/1k.html"), request("/0k.html", CLOSE)
    sizes = [("0k", "/0k.html"), ("1k", "/1k.html"), ("10k", "/10k.html"), ("100k", "/100k.html"), ("1m", "/1m.bin")]
    out = [Case("http-cps", ROOT, [last], ("-k",), floor="answer", note="a connection for each request")]
    out += [Case(f"https-{size}", SESSIONS + ROOT, [request(path)], tls="rsa", http2=True) for size, path in sizes]
    out += [
        Case("https-cps-rsa", SESSIONS + ROOT, [last], ("-k",), tls="rsa", http2=True, note="a full handshake for each request"),
        Case("https-cps-ecdsa", SESSIONS + ROOT, [last], ("-k",), tls="ec", http2=True),
        Case("tls-new-resumed", ROOT + "ssl_session_cache shared:R:10m;", [last], ("-k", "-R"), tls="ec", connections=20),
        Case("tls-new-client-cert", ROOT + "ssl_session_cache off; ssl_session_tickets off; ssl_verify_client on; "
             "ssl_client_certificate @work@/ca.crt;", [last], ("-k", "-E@work@/client.pem"), tls="ec", connections=20),
        Case("keepalive-c2000-1k", ROOT, [one], connections=2000, floor="answer"),
        Case("https-c2000-1k", ROOT, [one], tls="ec", connections=2000),
        Case("pipelined-16", ROOT, [one], ("-P16",)),
        Case("proxy-c1000-1k", proxy("o1"), [request("/b/1024")], connections=1000, http=upstream("o1", "origin", 1024), floor="relay"),
        Case("ws-echo-64", TUNNEL, [WEBSOCKET], ("-w",), unit="message", status=101, floor="relay"),
        Case("ws-echo-64-tls", TUNNEL, [WEBSOCKET], ("-w",), unit="message", status=101, tls="ec"),
        events("sse-1000", floor="relay"),
        events("sse-1000-tls", tls="ec"),
    ]
    return out


def events(name, **more):
    """A thousand clients with an event a second each."""
    return Case(name, EVENTS, [request("/sse")], ("-s",), unit="event", connections=1000, endless=True, seconds=4, warm=0, **more)
