"""Cases of the first table: clients of others, and the server."""

from quic.link import Link
from quic.site import MANY
from quic.wire import V2

# How often a client that moves is tried: the new port may be that of the same thread of the server.
MOVES = 4
# The network of the QUIC interop runner: 15 ms in each direction, 10 Mbit/s, room for 25 datagrams.
RATE = 10_000_000 / 8
ROAD = Link(delay=0.015, rate=RATE)
# Links of both tables by the names of their cases.
LINKS = {
    "amplificationlimit": Link(delay=0.015, deaf=2),
    "handshakeloss": ROAD._replace(loss=0.3),
    "handshakecorruption": ROAD._replace(corruption=0.3),
    "transferloss": ROAD._replace(loss=0.02),
    "transfercorruption": ROAD._replace(corruption=0.02),
    "blackhole": ROAD._replace(black=(300, 2, 2)),
    "crosstraffic": ROAD._replace(cross=True),
    "longrtt": Link(delay=0.75),
    "ecn": ROAD._replace(congested=0.01),
}
# These make AES look slow to Go and to BoringSSL, which then put ChaCha20 first.
SLOW_AES = {"GODEBUG": "cpu.aes=off,cpu.pclmulqdq=off", "OPENSSL_ia32cap": "~0x200000200000000"}


class Case:
    """What the client is told to do, and what has to be seen on the way and in the server's log.

    `client` is the case that the client is called with, `port` that of the server, `seconds` the longest time.
    """

    def __init__(self, name, files, proof, why, client=None, port="plain", rebind=False, env=None, times=1, seconds=60):
        self.name, self.files, self.proof, self.why = name, files, proof, why
        self.client, self.port, self.rebind, self.env, self.times = client or name, port, rebind, env or {}, times
        self.seconds, self.link = seconds, LINKS.get(name, Link())
        self.host = "::1" if port == "ipv6" else "127.0.0.1"


def reached(relay):
    """The most that the server sent to an unproven address, in parts of what it had received: at most 3 (RFC 9000, section 8.1)."""
    return max(client.most for client in relay.clients.values())


def cases():
    yes = lambda relay, lines: True
    one = lambda relay, lines: len(relay.connections) == 1
    moved = lambda relay, lines: len(relay.answered) > 1
    many = [f"/m/{n}" for n in range(MANY)]
    few = many[:10]
    each = lambda relay, lines: len(relay.connections) == len(lines)
    apart = "not one connection for each file"
    return [
        Case("handshake", ["/1k"], yes, ""),
        Case("transfer", ["/2m"], yes, ""),
        Case("multiplexing", many, one, "several connections"),
        Case("http3", ["/1k", "/10k", "/100k"], lambda r, l: one(r, l) and "http3=h3" in l[0], "several connections"),
        Case("retry", ["/1k"], lambda r, l: ("server", "retry") in r.seen, "no Retry was sent", port="retry"),
        Case("versionnegotiation", ["/1k"], lambda r, l: ("server", 0) in r.seen, "no version negotiation"),
        Case("v2", ["/1k"], lambda r, l: ("server", V2) in r.seen and ("server", 0) not in r.seen, "not version 2"),
        Case("v2upgrade", ["/1k"], lambda r, l: ("server", V2) in r.seen, "not version 2"),
        Case("chacha20", ["/10k"], lambda r, l: "CHACHA20" in l[0], "another cipher", env=SLOW_AES),
        Case("resumption", ["/1k", "/10k"], lambda r, l: "ssl_session_reused=r" in l[1], "the server resumed nothing"),
        Case("zerortt", ["/1k", "/10k"], lambda r, l: ("client", "0-rtt") in r.seen and "ssl_early_data=1" in l[1], "no early data"),
        Case("keyupdate", ["/2m"], yes, ""),
        Case("rebinding", ["/2m"], moved, "the server stayed at the old port", client="transfer", rebind=True, times=MOVES),
        Case("migration", ["/2m"], moved, "the server stayed at the old port", times=MOVES),
        Case("ipv6", ["/10k"], yes, "", client="handshake", port="ipv6"),
        Case("ecn", ["/2m"], lambda r, l: r.marked("client") and r.marked("server"), "one side gave up ECN"),
        Case("multiconnect", many[:20], each, apart),
        Case("amplificationlimit", ["/1k"], lambda r, l: 2 < reached(r) <= 3, "other amounts to an unproven address", client="handshake",
             port="large"),
        Case("longrtt", ["/1k"], yes, "", client="handshake"),
        Case("handshakeloss", few, each, apart, client="multiconnect", seconds=300),
        Case("handshakecorruption", few, each, apart, client="multiconnect", seconds=300),
        Case("transferloss", ["/2m"], yes, "", client="transfer", seconds=90),
        Case("transfercorruption", ["/2m"], yes, "", client="transfer", seconds=90),
        Case("blackhole", ["/2m"], lambda r, l: r.holes == 2, "no black hole", client="transfer", seconds=90),
        Case("crosstraffic", ["/2m"], yes, "", client="transfer", seconds=90),
    ]
