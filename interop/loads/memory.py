"""Memory: connections that wait, waves of them, and slow clients."""

import subprocess
import time

import generator
import process

# What waits, and the load that opens it.
WAITING = {
    "idle keep-alive": "keepalive-c2000-1k",
    "idle keep-alive, TLS": "https-c2000-1k",
    "WebSocket": "ws-echo-64",
    "WebSocket, TLS": "ws-echo-64-tls",
    "waiting for the upstream": "hang",
    "waiting for the upstream, TLS": "hang-tls",
    "silent event stream": "sse-idle",
}
LOADS = {*WAITING.values(), "slow-1m"}


def wave(server, case, connections, work):
    """Opens connections, and closes them. The memory while they are open, and two seconds after."""
    load = subprocess.Popen(generator.command(work, case, server.ports[case.name], 0.05, connections), stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)
    ready = load.stdout.readline()
    if not ready.startswith("ready"):
        raise RuntimeError(f"{case.name}: {ready.strip()}")
    time.sleep(1.5)
    held = process.pss(server.pid)
    load.stdin.write("go\n")
    load.stdin.flush()
    load.stdout.readline()
    load.stdin.close()
    load.wait()
    time.sleep(2)
    return held, process.pss(server.pid)


def waiting(server, case, connections, work):
    """Bytes for each connection that waits, in a first wave and in a second one."""
    server.restart()
    if case.name not in ("hang", "hang-tls", "sse-idle"):
        generator.run(work, case, server.ports[case.name], 0.3, server.pid, 50)
    before = process.pss(server.pid)
    held = [wave(server, case, connections, work)[0] for _ in range(2)]
    return [(kib - before) * 1024 // connections for kib in held]


def waves(server, case, work, count=16, connections=3000):
    """MiB of the server while each wave of event streams is open, and 30 s after the last one."""
    server.restart()
    held = [wave(server, case, connections, work)[0] for _ in range(count)]
    time.sleep(28)
    return [kib / 1024 for kib in (held[0], held[-1], process.pss(server.pid))]


def burst(server, case, work, clients=2000, requests=10000):
    """MiB before, at most and 17 s after answers of 1 MB to clients that read slowly."""
    server.restart()
    before, most = process.pss(server.pid), 0
    load = subprocess.Popen(["taskset", "-c", "1", f"{work}/load.bin", "-p", str(server.ports[case.name]), "-f", f"{work}/req/{case.name}",
                             "-c", str(clients), "-S", "16384", "-N", str(requests)], stdout=subprocess.DEVNULL)
    while load.poll() is None:
        most = max(most, process.pss(server.pid))
        time.sleep(0.5)
    time.sleep(17)
    return [kib / 1024 for kib in (before, most, process.pss(server.pid))]


def table(bench, cases, connections, say):
    """Markdown of all of these for both servers."""
    by_name = {case.name: case for case in cases}
    rows = []

    def add(what, measure, form):
        figures = []
        for server in bench.servers.values():
            say(f"memory: {what}, {server.name}")
            figures.append(form(measure(server)))
        rows.append(f"| {what} | {' | '.join(figures)} |")

    for what, name in WAITING.items():
        add(f"{what}, bytes a connection, first and second wave of {connections}",
            lambda server: waiting(server, by_name[name], connections, bench.work), lambda two: f"{two[0]}, {two[1]}")
    add("16 waves of 3,000 event streams, MB with the first, with the last, 30 s after",
        lambda server: waves(server, by_name["sse-idle"], bench.work), megabytes)
    add("10,000 answers of 1 MB to 2,000 slow clients, MB before, at most, 17 s after",
        lambda server: burst(server, by_name["slow-1m"], bench.work), megabytes)
    return "| memory (PSS) | nginx | Forebay |\n| --- | ---: | ---: |\n" + "\n".join(rows)


def megabytes(figures):
    return ", ".join(f"{figure:.0f}" for figure in figures)
