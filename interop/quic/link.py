"""The way of datagrams in one direction: what is lost, altered and delayed on it. The same seed has the same effect."""

import collections
import random

# Other traffic: a burst of so many datagrams at a time, with so many seconds between bursts on average.
CROSS_BURST, CROSS_PAUSE = 20, 0.05
DATAGRAM = 1500

# What a link does:
# loss, corruption: share of datagrams that are lost or get a wrong bit. At most three in a row, so that everything ends.
# congested: share of datagrams that are marked so (ECN-CE), of those whose sender knows ECN.
# delay: seconds in one direction. rate: bytes a second. queue: datagrams that wait for the rate; more are lost.
# cross: whether other traffic takes about half of the rate, in bursts.
# black: (n, seconds, times): after n datagrams of the server nothing passes for some seconds, so many times.
# deaf: so many datagrams of each client are lost after the server's first one.
Link = collections.namedtuple("Link", "loss corruption congested delay rate queue cross black deaf")
Link.__new__.__defaults__ = (0, 0, 0, 0, None, 25, False, None, 0)


class Pipe:
    """One direction of a link."""

    def __init__(self, link, seed):
        self.link, self.random = link, random.Random(seed)
        self.missed = 0
        # When the sender is free again, and when the next burst of other traffic comes.
        self.free, self.cross = 0, 0

    def passes(self, data, now):
        """Returns the time at which the datagram arrives and what it is by then, or `None` if it is lost."""
        if self.hit(self.link.loss):
            return None
        if self.hit(self.link.corruption):
            data = self.altered(data)
        at = self.queued(len(data), now)
        return None if at is None else (at + self.link.delay, data)

    def hit(self, share):
        if not share:
            return False
        hit = self.missed < 3 and self.random.random() < share
        self.missed = self.missed + 1 if hit else 0
        return hit

    def altered(self, data):
        bit = self.random.randrange(8 * len(data))
        data = bytearray(data)
        data[bit // 8] ^= 1 << bit % 8
        return bytes(data)

    def queued(self, length, now):
        link = self.link
        if not link.rate:
            return now
        most = link.queue * DATAGRAM / link.rate
        if link.cross:
            self.cross = self.cross or now
            while self.cross <= now:
                self.free = min(max(self.free, self.cross) + CROSS_BURST * DATAGRAM / link.rate, self.cross + most)
                self.cross += self.random.expovariate(1 / CROSS_PAUSE)
        begin = max(self.free, now)
        if begin - now > most:
            return None
        self.free = begin + length / link.rate
        return self.free

    def mark(self, ecn):
        """Returns the ECN bits of a datagram as they arrive (RFC 3168)."""
        return 3 if ecn in (1, 2) and self.random.random() < self.link.congested else ecn
