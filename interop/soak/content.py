"""Bodies as a pure function of their names, so that each receiver can tell whether every byte is right.

A name is a letter for the kind, a number, and the length: `t17-65536`. `t` is text, `b` mostly random bytes, `l` text with letters of
ISO 8859-1, `v` text that changes every few seconds. A key is a name with a version, as in `t17-65536.0`; only `v` has others than 0.
Each line of 64 bytes begins with a mark of its key and its number: a wrong byte tells where it comes from.
"""

import functools
import hashlib
import random
import re
import time
import zlib

LINE = 64
NAME = re.compile(r"^([tblv])(\d+)-(\d+)$")
VERSION_SECONDS = 7
# What sub_filter looks for and puts in its place. Every eighth line of text has it.
MARK, MARK_REPLACED = b"needle-in-hay", b"<found>"

# The first ones are asked for most.
SIZES = [65536, 90000, 300000, 700, 80000, 150000, 0, 110000, 8192, 70000, 1, 50000, 200000, 4096, 33000, 65535, 63, 100000, 16384, 3000, 32768,
         20000, 1024, 120000]
HUGE = 20_000_000


def parse(name):
    """Returns kind and length of a name, or `None`."""
    match = NAME.match(name)
    return (match[1], int(match[3])) if match else None


def names(kind, count, sizes=SIZES):
    return [f"{kind}{n}-{sizes[n % len(sizes)]}" for n in range(count)]


def current_key(name, now=None):
    """Key of a name at this moment."""
    version = int((now or time.time()) / VERSION_SECONDS) if name[0] == "v" else 0
    return f"{name}.{version}"


def mark(key):
    return hashlib.sha256(key.encode()).hexdigest()[:10].encode()


@functools.lru_cache(maxsize=300)
def body(key):
    """Bytes of the body of a key."""
    kind, length = parse(key.rsplit(".", 1)[0])
    made = random.Random(key)
    head = mark(key)
    if kind == "b":
        pool = made.randbytes(8192)
    elif kind == "l":
        pool = bytes(made.choice(b"abcdefghijk \xe4\xf6\xfc\xdf\xe9\xc0\xd8\xa7") for _ in range(8192))
    else:
        pool = b"".join(made.choice(WORDS) for _ in range(2048))[:8192].ljust(8192, b".")
    spare = LINE - len(head) - 10
    lines = []
    for n in range(length // LINE + 1):
        at = n * 37 % (8192 - spare)
        rest = pool[at : at + spare]
        if kind in "tv" and n % 8 == 3:
            rest = MARK + rest[len(MARK) :]
        lines.append(b"%s:%07x %s\n" % (head, n, rest))
    return b"".join(lines)[:length]


WORDS = [w + b" " for w in b"reed weir sluice basin forebay gate mill race pond stream brook ford delta creek lake well canal lock".split()]


def latin1_to_utf8(data):
    return data.decode("latin-1").encode()


@functools.lru_cache(maxsize=64)
def gzipped(key):
    return zlib.compress(body(key), 1, wbits=31)


def substituted(data):
    """What sub_filter makes of a body."""
    return data.replace(MARK, MARK_REPLACED)


SSI_SOURCES = ["/inc-proxy/", "/static/", "/inc-cache/"]


def ssi_parts(name):
    """Includes of a page: location and name of each."""
    made = random.Random("ssi" + name)
    count = int(name.split("-")[1])
    kinds = names("t", 40)
    return [(made.choice(SSI_SOURCES), made.choice(kinds[8:24])) for _ in range(count)]


def ssi_page(name, mode=""):
    """Source of a page with includes. `mode` is what the origin of the first one does wrong."""
    lines = [f"page {name}\n"]
    for n, (source, part) in enumerate(ssi_parts(name)):
        include = f"/inc-wild/{part}?m={mode}" if mode and n == 0 else source + part
        lines.append(f'{n}<!--# include virtual="{include}" -->/{n}\n')
    return "".join(lines + ["end\n"]).encode()


def ssi_assembled(name):
    parts = [f"page {name}\n".encode()]
    for n, (_, part) in enumerate(ssi_parts(name)):
        parts.append(b"%d%s/%d\n" % (n, body(part + ".0"), n))
    return b"".join(parts + [b"end\n"])


def difference(expected, got, at):
    """Describes the first difference between what was expected at an offset and what came."""
    want = expected[at : at + len(got)]
    first = next((i for i in range(min(len(want), len(got))) if want[i] != got[i]), min(len(want), len(got)))
    start = (at + first) // LINE * LINE
    show = got[max(0, start - at) : max(0, start - at) + 96]
    return f"at {at + first}: wanted {expected[at + first : at + first + 32]!r}, got {got[first : first + 32]!r}, the line is {show!r}"


@functools.lru_cache(maxsize=4000)
def key_of_mark(found):
    """Names the key that a mark belongs to, among those that the soak uses."""
    now = int(time.time() / VERSION_SECONDS)
    for kind in "tbl":
        for name in names(kind, 160):
            if mark(name + ".0") == found:
                return name + ".0"
    for name in names("v", 40):
        for version in range(now - 100, now + 1):
            if mark(f"{name}.{version}") == found:
                return f"{name}.{version}"
    return None
