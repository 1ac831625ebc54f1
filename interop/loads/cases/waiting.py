"""Connections that wait, and slow clients: what they cost in memory."""

from case import Case, proxy, request
from cases.connections import EVENTS


def cases():
    hang = [request("/hang")]
    return [
        Case("hang", EVENTS, hang, ("-H",)),
        Case("hang-tls", EVENTS, hang, ("-H",), tls="ec"),
        Case("sse-idle", EVENTS, [request("/ssei")], ("-s",)),
        Case("slow-1m", proxy("o"), [request("/b/1048576", "Connection: close")]),
    ]
