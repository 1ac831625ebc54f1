"""Reads what a QUIC datagram shows to everybody."""

import collections

V1, V2 = 0x00000001, 0x6B3343CF


def integer(data, at):
    """Reads a variable-length integer (RFC 9000, section 16)."""
    length = 1 << (data[at] >> 6)
    return int.from_bytes(data[at : at + length], "big") & ((1 << (8 * length - 2)) - 1), at + length


Packet = collections.namedtuple("Packet", "version kind destination source length")


def long_headers(data):
    """Yields the packets of a datagram that have long headers (RFC 9000, section 17.2; RFC 9369, section 3.2).

    The length is that of what is encrypted, and 0 where a packet says nothing about it.
    """
    at = 0
    try:
        while at < len(data) and data[at] & 0x80:
            first, version = data[at], int.from_bytes(data[at + 1 : at + 5], "big")
            number = (first >> 4) & 3
            if version == V2:
                number = (number - 1) % 4
            kind = ["initial", "0-rtt", "handshake", "retry"][number] if version else "version negotiation"
            at += 5
            ids = []
            for _ in range(2):
                ids.append(data[at + 1 : at + 1 + data[at]])
                at += 1 + data[at]
            if kind == "retry" or version not in (V1, V2):
                yield Packet(version, kind, *ids, 0)
                return
            if kind == "initial":
                length, at = integer(data, at)
                at += length
            length, at = integer(data, at)
            yield Packet(version, kind, *ids, length)
            at += length
    except IndexError:
        return
