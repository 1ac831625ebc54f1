"""Clients that speak HTTP/2. h2load makes the load, ten streams a connection."""

from case import ROOT, Case, proxy
from cases.bodies import ROOM
from cases.connections import SESSIONS


def cases():
    upload = ("-d@work@/post64k",)
    return [
        h2("h2-1k", SESSIONS + ROOT, "/1k.html", tls="rsa", connections=50),
        h2("h2-10k", SESSIONS + ROOT, "/10k.html", tls="rsa", connections=50),
        h2("h2-100k", ROOT, "/100k.html", connections=20),
        h2("h2-proxy-1k", proxy("o"), "/b/1024"),
        h2("h2-upload-64k", ROOM + "client_body_buffer_size 128k; " + proxy("o"), "/up", upload),
        h2("h2-upload-64k-default", ROOM + proxy("o"), "/up", upload, note="client_body_buffer_size as it comes"),
    ]


def h2(name, conf, path, options=(), tls="ec", connections=10, **more):
    return Case(name, conf, [], options, path=path, tls=tls, http2=True, connections=connections, **more)
