"""Upstreams, by protocol."""

import random

from case import BROWSER, KEEP, Case, proxy, request, upstream

# The fields that manuals recommend.
TYPICAL = """proxy_set_header Host $host; proxy_set_header X-Real-IP $remote_addr;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto $scheme;
    proxy_hide_header X-Powered-By; proxy_read_timeout 30s;
    add_header X-Frame-Options DENY; add_header X-Content-Type-Options nosniff;
    add_header Strict-Transport-Security max-age=31536000 always;"""
GRPC = ("-d@work@/grpc.req", "-Hcontent-type: application/grpc", "-Hte: trailers")
CERTIFICATE = """proxy_ssl_certificate @work@/client.crt; proxy_ssl_certificate_key @work@/client.key;
    proxy_ssl_session_reuse off;"""


def cases():
    one, small = request("/1k.html"), request("/b/1024")
    return [
        Case("proxy-1k", proxy("b"), [one], floor="relay-files"),
        Case("proxy-10k", proxy("o"), [request("/b/10240")], floor="relay"),
        Case("proxy-100k", proxy("b"), [request("/100k.html")], floor="relay-files"),
        Case("proxy-1m", proxy("o"), [request("/b/1048576")], floor="relay"),
        Case("proxy-chunked-10k", proxy("o"), [request("/c/10240")], floor="relay"),
        Case("proxy-typical-1k", proxy("o", TYPICAL), [request("/b/1024", *BROWSER)], floor="relay", note="the fields that manuals recommend"),
        cookies(),
        Case("proxy-new-1k", new("http://o"), [small], note="a connection to the upstream for each request"),
        Case("proxy-https-1k", f"location / {{ proxy_pass https://bt; {KEEP} }}", [one], http=upstream("bt", "btls")),
        Case("proxy-https-new-1k", new("https://btn"), [one], http="upstream btn { server 127.0.0.1:@btls@; }", connections=20,
             note="a resumed handshake with the upstream for each request"),
        Case("proxy-mtls-new-1k", new("https://bm", CERTIFICATE), [one], http="upstream bm { server 127.0.0.1:@bmtls@; }", connections=20,
             note="a full handshake with a certificate of the client for each request"),
        Case("proxy-h2-1k", "location / { proxy_pass http://bh; proxy_http_version 2; }", [one], http=upstream("bh", "bh2"),
             note="proxy_http_version 2, which nginx has since 1.29.4"),
        fastcgi("fastcgi-1k", "127.0.0.1:@fcgi@", note="a connection for each request"),
        fastcgi("fastcgi-keepalive-1k", "fk", "fastcgi_keep_conn on;", http=upstream("fk", "fcgi")),
        Case("uwsgi-1k", "location / { uwsgi_pass 127.0.0.1:@uwsgi@; include @work@/uwsgi.conf; }", [request("/app?a=1", *BROWSER)]),
        grpc("grpc-unary", "bg", "/p.S/Unary"),
        grpc("grpc-early-answer", "bge", "/e.S/Unary",
             note="the server answers without reading the message, and resets the stream with NO_ERROR"),
    ]


def new(upstream_url, more=""):
    return f"location / {{ proxy_pass {upstream_url}; proxy_set_header Connection close; {more} }}"


def cookies():
    chance = random.Random(5)
    jar = "; ".join(f"c{i}={chance.getrandbits(256):064x}" for i in range(110))
    conf = "large_client_header_buffers 8 16k; " + proxy("o", "proxy_buffer_size 16k; proxy_buffers 8 16k;")
    return Case("proxy-cookies-8k", conf, [request("/b/1024", *BROWSER[:5], f"Cookie: {jar}")], floor="relay",
                note="8 KB of request fields")


def fastcgi(name, address, more="", **options):
    conf = f"location / {{ fastcgi_pass {address}; {more} include @work@/fastcgi.conf; }}"
    return Case(name, conf, [request("/index.php?a=1", *BROWSER)], **options)


def grpc(name, group, path, **options):
    conf = f"location / {{ grpc_pass grpc://{group}; }}"
    return Case(name, conf, [], GRPC, path=path, http2=True, connections=10, http=upstream(group, "bh2", 128), **options)
