"""The server under test: its processes, and what /proc says of them."""

import collections
import glob
import os
import signal
import socket
import subprocess
import time


def read(path):
    try:
        with open(path, errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def children(pid):
    return [int(c) for c in " ".join(read(p) for p in glob.glob(f"/proc/{pid}/task/*/children")).split()]


def cmdline(pid):
    return read(f"/proc/{pid}/cmdline").replace("\0", " ")


def alive(pid):
    stat = read(f"/proc/{pid}/stat")
    return bool(stat) and stat.rsplit(")", 1)[1].split()[0] != "Z"


def wait_until(condition, seconds, step=0.05):
    """Waits until a condition holds; returns whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(step)
    return True


class Server:
    def __init__(self, program, forebay, directory, disk, ports):
        self.program, self.forebay, self.directory, self.disk, self.ports = program, forebay, directory, disk, ports
        self.pidfile = f"{directory}/server.pid"
        self.masters = set()
        # Group of the processes for their memory, where there can be one.
        self.group = None
        # When a worker was killed, which leaves its temporary files.
        self.last_kill = 0.0

    def command(self):
        return [self.program, "-p", self.directory, "-c", f"{self.directory}/nginx.conf"]

    def start(self):
        with open(f"{self.directory}/output", "w") as out:
            tested = subprocess.run(self.command() + ["-t"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if tested.returncode:
                raise SystemExit(f"the configuration is refused:\n{tested.stdout}")
            subprocess.run(self.command(), stdout=out, stderr=out, stdin=subprocess.DEVNULL, check=True, preexec_fn=self.group and self.group.join)
        if not wait_until(lambda: self.workers() and self.ping(), 20):
            raise SystemExit(f"the server does not start:\n{read(self.directory + '/output')}\n{read(self.directory + '/logs/error.log')[-2000:]}")

    def master(self):
        pid = int(read(self.pidfile).strip() or 0)
        if pid:
            self.masters.add(pid)
        return pid

    def workers(self, master=None):
        master = master or self.master()
        return [c for c in children(master) if "worker process" in cmdline(c) and "shutting" not in cmdline(c)] if master else []

    def worker(self):
        return (self.workers() or [0])[0]

    def processes(self):
        """All processes of the server, those that are ending among them."""
        found = []
        for master in list(self.masters):
            if alive(master):
                found += [master] + [c for c in children(master) if c not in self.masters]
        return found

    def ping(self, timeout=2):
        try:
            with socket.create_connection(("127.0.0.1", self.ports["STATUS"]), timeout) as s:
                s.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
                return b"pong" in s.recv(4096) + s.recv(4096)
        except OSError:
            return False

    def page(self, path, timeout=5):
        with socket.create_connection(("127.0.0.1", self.ports["STATUS"]), timeout) as s:
            s.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            data = b""
            while more := s.recv(65536):
                data += more
        return data.partition(b"\r\n\r\n")[2].decode()

    def status(self):
        """Numbers of stub_status: active, accepts, handled, requests, reading, writing, waiting."""
        words = self.page("/status").split()
        return {"active": int(words[2]), "accepts": int(words[7]), "handled": int(words[8]), "requests": int(words[9]),
                "reading": int(words[11]), "writing": int(words[13]), "waiting": int(words[15])}

    def signal(self, name, pid=None):
        os.kill(pid or self.master(), getattr(signal, "SIG" + name))

    def end(self):
        """Ends the server. Returns processes that did not end by themselves."""
        for pid in self.processes():
            if pid in self.masters:
                self.signal("TERM", pid)
        wait_until(lambda: not self.processes(), 10)
        left = self.processes()
        for pid in left:
            self.signal("KILL", pid)
        return left


def descriptors(pid):
    """Counts open descriptors by kind, and lists files that have been deleted."""
    counts, deleted = collections.Counter(), []
    for path in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if target.startswith("socket:"):
            counts["sockets"] += 1
        elif target.startswith("anon_inode:"):
            counts[target[11:].strip("[]")] += 1
        elif target.startswith("pipe:"):
            counts["pipes"] += 1
        elif target.endswith(" (deleted)"):
            counts["deleted"] += 1
            deleted.append(target[:-10])
        else:
            counts["logs" if "/logs/" in target else "files"] += 1
    counts["all"] = sum(counts.values())
    return counts, deleted


def watches(pid):
    return sum(read(p).count("inotify wd") for p in glob.glob(f"/proc/{pid}/fdinfo/*"))


def memory(pid):
    """Resident memory in KB without that of files."""
    fields = dict(line.split(":", 1) for line in read(f"/proc/{pid}/status").splitlines() if ":" in line)
    return sum(int(fields.get(name, "0 kB").split()[0]) for name in ["RssAnon", "RssShmem"])


def threads(pid):
    """Name and CPU time in seconds of each thread."""
    found = {}
    for path in glob.glob(f"/proc/{pid}/task/*/stat"):
        text = read(path)
        if text:
            words = text.rsplit(")", 1)[1].split()
            found[path.split("/")[-2]] = (text.split("(", 1)[1].rsplit(")", 1)[0], (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK"))
    return found


def upstream_connections(pid, ports):
    """TCP connections of a process to servers with these ports, by port."""
    inodes = set()
    for path in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            inodes.add(os.readlink(path))
        except OSError:
            pass
    counts = collections.Counter()
    for line in read("/proc/net/tcp").splitlines()[1:]:
        words = line.split()
        port = int(words[2].split(":")[1], 16)
        if port in ports and words[3] in ("01", "08", "04", "05") and f"socket:[{words[9]}]" in inodes:
            counts[port] += 1
    return counts
