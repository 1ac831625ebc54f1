"""UDP relay between a client and the server."""

import heapq
import itertools
import selectors
import socket
import struct
import threading
import time

from quic.link import Link, Pipe
from quic.wire import long_headers

# Datagrams from the server after which the relay changes its port.
REBIND_AFTER = 300
# What sets and reads the byte with the ECN bits, for each family of addresses: level, option, option that asks for it.
ECN = {
    socket.AF_INET: (socket.IPPROTO_IP, socket.IP_TOS, 13),
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_TCLASS, socket.IPV6_RECVTCLASS),
}


class Client:
    """What the relay knows of one address of the client."""

    def __init__(self, address, socket):
        self.address, self.socket = address, socket
        # Bytes to and from the server until the server knows that the address is right.
        self.to_server, self.from_server, self.proved = 0, 0, False
        # The most that the server sent to the unproven address, in parts of what it had received.
        self.most = 0
        self.deaf = None


class Relay(threading.Thread):
    """UDP relay between a client and the server, which records what is in the clear: versions, types of packets with long headers, ECN.

    Each address of the client has a socket of its own towards the server. With `rebind` it is replaced once in the middle of the
    connection, as a router does that forgets a mapping. `link` says what happens to datagrams.
    """

    def __init__(self, server, rebind=False, link=Link(), seed=19):
        super().__init__(daemon=True)
        self.server, self.rebind, self.link = server, rebind, link
        self.host = server[0]
        self.family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self.pipes = {who: Pipe(link, f"{seed} {who}") for who in ("client", "server")}
        self.selector = selectors.DefaultSelector()
        self.front = self.bound()
        self.port = self.front.getsockname()[1]
        # Clients by their addresses.
        self.clients = {}
        # Pairs of direction and type, ports of ours that the server has sent to, and ECN bits of all datagrams by direction.
        self.seen, self.answered, self.ecn = set(), set(), {"client": [], "server": []}
        self.from_server = 0
        # Encrypted bytes of the server's Handshake packets by connection: the client's address, and its connection id.
        self.connections = {}
        # Datagrams under way: time, number, direction, client, content, ECN bits.
        self.under_way, self.numbers = [], itertools.count()
        self.black_until, self.black_from, self.holes = 0, link.black[0] if link.black else None, 0
        self.stopped = False

    def bound(self):
        s = socket.socket(self.family, socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        level, _, ask = ECN[self.family]
        s.setsockopt(level, ask, 1)
        s.bind((self.host, 0))
        s.setblocking(False)
        return s

    def open(self, client):
        client.socket = self.bound()
        self.clients[client.address] = client
        self.selector.register(client.socket, selectors.EVENT_READ, client)
        return client

    def run(self):
        self.selector.register(self.front, selectors.EVENT_READ, None)
        while not self.stopped:
            wait = self.under_way[0][0] - time.monotonic() if self.under_way else 0.1
            for key, _ in self.selector.select(min(max(wait, 0), 0.1)):
                try:
                    self.receive(key)
                except OSError:
                    # A full buffer or a port that is gone: the datagram is lost, as datagrams may be.
                    pass
            while self.under_way and self.under_way[0][0] <= time.monotonic():
                self.deliver(*heapq.heappop(self.under_way)[2:])

    def receive(self, key):
        """Takes one datagram: with more at a time, the paths of a client that moves would overtake each other."""
        data, ancillary, _, peer = key.fileobj.recvmsg(65535, 64)
        ecn = next((value[0] & 3 for level, kind, value in ancillary if (level, kind) == ECN[self.family][:2]), 0)
        client, now = key.data, time.monotonic()
        if client is None:
            who = "client"
            client = self.clients.get(peer) or self.open(Client(peer, None))
        else:
            who = "server"
            self.answered.add(key.fileobj.getsockname()[1])
            self.count(client, data)
        self.record(who, client, data, ecn)
        if who == "server" and self.rebind and self.from_server == REBIND_AFTER:
            self.move(client)
        if now < self.black_until or (who == "client" and self.deaf(client)):
            return
        passed = self.pipes[who].passes(data, now)
        if passed is None:
            return
        at, data = passed
        ecn = self.pipes[who].mark(ecn)
        if at <= now and not self.under_way:
            self.deliver(who, client, data, ecn)
        else:
            heapq.heappush(self.under_way, (at, next(self.numbers), who, client, data, ecn))

    def count(self, client, data):
        """Counts a datagram of the server, and begins a black hole where one is due."""
        self.from_server += 1
        if client.deaf is None:
            client.deaf = self.link.deaf
        if not client.proved:
            client.from_server += len(data)
            client.most = max(client.most, client.from_server / client.to_server)
        if self.black_from is not None and self.from_server >= self.black_from and self.holes < self.link.black[2]:
            self.holes += 1
            self.black_until = time.monotonic() + self.link.black[1]
            self.black_from = self.from_server + self.link.black[0]

    def deaf(self, client):
        """Tells whether the client's datagram is lost because the server is to hear nothing for a while."""
        if not client.deaf:
            return False
        client.deaf -= 1
        return True

    def deliver(self, who, client, data, ecn):
        try:
            level, option, _ = ECN[self.family]
            marks = [(level, option, struct.pack("i", ecn))]
            if who == "server":
                self.front.sendmsg([data], marks, 0, client.address)
                return
            client.to_server += len(data)
            # A Handshake packet proves the address (RFC 9000, section 8.1).
            client.proved |= any(packet.kind == "handshake" for packet in long_headers(data))
            client.socket.sendmsg([data], marks, 0, self.server)
        except OSError:
            pass

    def move(self, client):
        self.selector.unregister(client.socket)
        client.socket.close()
        self.open(client)

    def record(self, who, client, data, ecn):
        self.ecn[who].append(ecn)
        for packet in long_headers(data):
            self.seen.add((who, packet.kind))
            self.seen.add((who, packet.version))
            if (who, packet.kind) == ("server", "handshake"):
                connection = (client.address, packet.destination)
                self.connections[connection] = self.connections.get(connection, 0) + packet.length

    def marked(self, who):
        """Tells whether a side marked datagrams until the end: it stops if the other side does not report them (RFC 9000, section 13.4.2)."""
        bits = self.ecn[who]
        return any(bit in (1, 2) for bit in bits[len(bits) // 2 :])

    def end(self):
        self.stopped = True
        self.join()
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
