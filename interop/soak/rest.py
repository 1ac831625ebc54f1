"""Measurements of the server, while it works and after it, and the tolerances within which it has to come back."""

import collections
import glob
import os
import re
import select
import socket
import statistics
import threading
import time

import server as processes

# What may be left after the rest, beyond what was there before the load.
TOLERANCE = {
    # KB: caches of files and of small responses, which stay for one to two minutes, and the pages of the program.
    "rss": 64 << 10,
    # Files that are kept open for the next request, in both threads.
    "files": 500,
    "sockets": 16,
    "threads": 4,
    "watches": 600,
    # The server may be asked by nobody, and keeps nothing that is deleted.
    "deleted": 0,
    "upstream": 0,
    "temporary": 0,
}
# Growth of the median of memory in the last fifth of a long run over that after ten minutes.
GROWTH, GROWTH_KB = 0.05, 2048
# Deleted files that answers under way may hold open.
DELETED_BUSY = 150
SPINNING = 0.5


def measure(server):
    """Figures of the worker processes together."""
    counts, watches, rss, threads = collections.Counter(), 0, 0, 0
    for pid in server.workers():
        counts.update(processes.descriptors(pid)[0])
        watches += processes.watches(pid)
        rss += processes.memory(pid)
        threads += len(processes.threads(pid))
    return {"fds": {**{"all": 0, "deleted": 0, "files": 0, "sockets": 0, "logs": 0}, **counts}, "watches": watches, "rss": rss, "threads": threads}


def shown(figures):
    return f"RSS {figures['rss'] >> 10} MB, descriptors {figures['fds']}, threads {figures['threads']}, watches {figures['watches']}"


class Watcher(threading.Thread):
    """Asks the threads for signs of life, and looks at descriptors, during the load."""

    def __init__(self, server, judge):
        super().__init__(daemon=True)
        self.server, self.judge, self.stopped = server, judge, threading.Event()
        self.many_deleted = 0
        self.memory = []

    def run(self):
        began = time.monotonic()
        while not self.stopped.wait(2.5):
            self.probe()
            figures = measure(self.server)
            self.memory.append((time.monotonic() - began, figures["rss"]))
            self.many_deleted = self.many_deleted + 1 if figures["fds"]["deleted"] > DELETED_BUSY else 0
            if self.many_deleted == 4:
                held = [path for pid in self.server.workers() for path in processes.descriptors(pid)[1]]
                kinds = collections.Counter(re.sub(r"/[^/]*$", "", re.sub(r"/[0-9a-f]/[0-9a-f]{2}/", "/", p)) for p in held)
                self.judge.add("deleted-open", "descriptors", f"{len(held)} deleted files are open during 10 s: {kinds.most_common(4)}")

    def probe(self):
        """Opens connections until each thread is likely to have one, and waits for the answers."""
        start = time.monotonic()
        waiting, answered = {}, 0
        for _ in range(14):
            try:
                s = socket.create_connection(("127.0.0.1", self.server.ports["STATUS"]), 5)
                s.sendall(b"GET /ping HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                waiting[s] = b""
            except OSError:
                continue
        end = start + 12
        total = len(waiting)
        while waiting and time.monotonic() < end:
            for s in select.select(list(waiting), [], [], 0.5)[0]:
                try:
                    answered += b"200" in s.recv(4096)
                except OSError:
                    pass
                waiting.pop(s)
                s.close()
        if waiting and not self.judge.during(start, time.monotonic(), {"liveness", "hang"}):
            self.judge.add("dead-thread", "liveness", f"{len(waiting)} of {total} connections get no answer within 12 s, {answered} do; "
                           f"threads: {busiest(self.server)}")
            self.replace_stuck()
        for s in waiting:
            s.close()


    def replace_stuck(self):
        """Kills the workers, so that there is more to find than a dead thread."""
        window = self.judge.window("stuck", 60)
        for pid in self.server.workers():
            self.server.signal("KILL", pid)
        self.server.last_kill = time.time()
        processes.wait_until(lambda: self.server.workers() and self.server.ping(), 15)
        self.judge.close(window)


def spinning(server, seconds):
    """Threads that take more than their share of a CPU in a time without load."""
    before = {(pid, tid): cpu for pid in server.processes() for tid, (_, cpu) in processes.threads(pid).items()}
    time.sleep(seconds)
    found = []
    for pid in server.processes():
        for tid, (name, cpu) in processes.threads(pid).items():
            used = (cpu - before.get((pid, tid), cpu)) / seconds
            if used > SPINNING:
                found.append(f"thread {tid} ({name}) of {pid}: {used:.0%} of a CPU")
    return found


def busiest(server):
    return spinning(server, 1)


def temporary(disk, since):
    """Files below the temporary directories, and those of caches that are not published."""
    left = [p for p in glob.glob(f"{disk}/tmp/**", recursive=True) if os.path.isfile(p)]
    left += [p for p in glob.glob(f"{disk}/cache/**", recursive=True) if os.path.isfile(p) and not re.search(r"/[0-9a-f]{32}$", p)]
    # Store and DAV write beside their targets.
    left += [p for p in glob.glob(f"{disk}/store/**", recursive=True) if os.path.isfile(p) and not re.search(r"/([tb]\d+-\d+|[\w-]+\.bin)$", p)]
    return [p for p in left if os.stat(p).st_mtime > since]


def rest(soak):
    """Waits, and compares the server with what it was before."""
    server, judge = soak.server, soak.judge
    end = time.monotonic() + soak.args.rest
    while time.monotonic() < end:
        time.sleep(1)
    if found := spinning(server, 4):
        judge.add("spinning", "rest", f"{found}")
    after, before = measure(server), soak.baseline
    for name in ["files", "sockets", "deleted"]:
        if after["fds"][name] > before["fds"][name] + TOLERANCE[name]:
            held = [path for pid in server.workers() for path in processes.descriptors(pid)[1]][:3]
            judge.add("left", f"descriptors: {name}", f"{after['fds'][name]} after the rest, {before['fds'][name]} before {held if name == 'deleted' else ''}")
    if after["fds"]["logs"] > before["fds"]["logs"]:
        judge.add("left", "descriptors: logs", f"{after['fds']['logs']} log files are open, {before['fds']['logs']} before: old configurations are alive")
    for name in ["rss", "threads", "watches"]:
        if after[name] > before[name] + TOLERANCE[name]:
            judge.add("left", name, f"{after[name]} after the rest, {before[name]} before")
    ports = {port: name for name, port in soak.ports.items() if name.startswith("O_")}
    open_ones = sum((processes.upstream_connections(pid, ports) for pid in server.workers()), collections.Counter())
    if sum(open_ones.values()) > TOLERANCE["upstream"]:
        judge.add("left", "upstream connections", str({ports[p]: n for p, n in open_ones.items()}))
    expected = {server.master(), *server.workers()}
    helpers = [p for p in server.processes() if p not in expected and "cache" not in processes.cmdline(p)]
    # Old workers of nginx wait for connections over QUIC that are gone.
    if helpers and server.forebay:
        judge.add("left", "processes", str([(p, processes.cmdline(p)) for p in helpers]))
    if files := temporary(soak.disk, server.last_kill + 1):
        judge.add("left", "temporary files", f"{len(files)}: {files[:5]}")
    counts(server, judge, server.last_kill)
    growth(soak.watcher.memory, judge)
    return after


def metric(server):
    """Requests that the metrics of Forebay count, over all labels."""
    if not server.forebay:
        return 0
    return sum(int(float(value)) for value in re.findall(r"^forebay_http_requests_total(?:{[^}]*})? (\S+)", server.page("/metrics"), re.M))


def counts(server, judge, killed):
    """Compares the numbers of stub_status with a known number of requests."""
    before, measured = server.status(), metric(server)
    for _ in range(20):
        if not server.ping(5):
            judge.add("hang", "rest", "a request after the load gets no answer")
            return
    after, more = server.status(), metric(server) - measured
    # The pages of figures are requests, too.
    if server.forebay and not 20 <= more <= 24:
        judge.add("counts", "metrics", f"forebay_http_requests_total has grown by {more} with 20 requests")
    own = 1 + server.forebay
    wanted = {"accepts": 20 + own, "handled": 20 + own, "requests": 20 + own}
    for name in wanted:
        if after[name] - before[name] != wanted[name] and server.forebay:
            judge.add("counts", "stub_status", f"{name} has grown by {after[name] - before[name]} with {wanted[name]} connections of a request: {before}, {after}")
    # nginx shares the numbers between processes, and one that was killed takes nothing back.
    if not server.forebay and killed:
        return
    if after["active"] != 1 or after["waiting"] != 0:
        judge.add("counts", "stub_status", f"connections are left: {after}")
    if after["accepts"] != after["handled"]:
        judge.add("counts", "stub_status", f"accepts and handled differ: {after}")


def growth(memory, judge):
    """Finds memory that goes on growing after ten minutes."""
    if not memory or memory[-1][0] < 900:
        return
    end = memory[-1][0]
    early = statistics.median(rss for t, rss in memory if 570 <= t <= 690)
    late = statistics.median(rss for t, rss in memory if t >= end * 0.8)
    if late > early * (1 + GROWTH) + GROWTH_KB:
        judge.add("growth", "memory", f"median of {late >> 10} MB in the last fifth, {early >> 10} MB after ten minutes")
