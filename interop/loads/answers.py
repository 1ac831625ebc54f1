"""Compares the answers of the servers to the first request of a load."""

import socket
import ssl

# What differs with the moment or the server.
SKIPPED = {"date", "server", "connection", "keep-alive"}
# How the length of a body is told.
FRAMING = {"content-length", "transfer-encoding"}


def fetch(case, port, work):
    """One answer: its status, its fields and its body."""
    with connect(case, port, work) as s:
        s.sendall(case.requests[0].replace(b"@@@@@@@@@@", b"0000000001"))
        received = b""
        while b"\r\n\r\n" not in received:
            received += more(s)
        head, _, body = received.partition(b"\r\n\r\n")
        lines = head.decode("latin1").split("\r\n")
        fields = [tuple(line.split(": ", 1)) if ": " in line else (line, "") for line in lines[1:]]
        named = {name.lower(): value for name, value in fields}
        status = int(lines[0].split(" ")[1])
        if status not in (101, 204, 304):
            body = whole(s, named, body)
        return status, fields, body


def connect(case, port, work):
    s = socket.create_connection(("127.0.0.1", port), timeout=5)
    if not case.tls:
        return s
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if any(option.startswith("-E") for option in case.options):
        context.load_cert_chain(f"{work}/client.pem")
    return context.wrap_socket(s, server_hostname="localhost")


def more(s):
    data = s.recv(1 << 18)
    if not data:
        raise ConnectionError("the connection ended within an answer")
    return data


def whole(s, fields, body):
    """The whole body, of which a part has been read."""
    if "content-length" in fields:
        while len(body) < int(fields["content-length"]):
            body += more(s)
        return body
    if fields.get("transfer-encoding") == "chunked":
        while not body.endswith(b"0\r\n\r\n"):
            body += more(s)
        return dechunked(body)
    while data := s.recv(1 << 18):
        body += data
    return body


def dechunked(rest):
    out = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        size = int(size, 16)
        if size == 0:
            return out
        out += rest[:size]
        rest = rest[size + 2:]


def difference(case, one, other):
    """What differs between two answers; nothing if that is nothing."""
    if one[0] != other[0]:
        return f"status {one[0]} and {other[0]}"
    fields = []
    for answer in (one, other):
        kept = sorted((name.lower(), value) for name, value in answer[1] if name.lower() not in SKIPPED)
        fields.append(sorted({name for name, _ in kept} - FRAMING) if case.varying else kept)
    out = []
    if fields[0] != fields[1]:
        only = [[field for field in mine if field not in others] for mine, others in (fields, fields[::-1])]
        out.append(f"fields {only[0]} and {only[1]}")
    if not case.varying and one[2] != other[2]:
        out.append(f"bodies of {len(one[2])} and {len(other[2])} bytes")
    return "; ".join(out)


def check(case, ports, work):
    """Compares the answers of servers, whose ports are by name. What is wrong, or nothing."""
    if case.endless or not case.requests:
        return ""
    try:
        got = {name: fetch(case, port, work) for name, port in ports.items()}
    except (OSError, ValueError, IndexError) as e:
        return f"no answer: {e}"
    wrong = [f"{name}: status {answer[0]}" for name, answer in got.items() if answer[0] != case.status]
    first, *others = got.values()
    return "; ".join(wrong + [said for other in others if (said := difference(case, first, other))])
