"""Processes under test: their start and end, CPU time and memory."""

import glob
import os
import random
import re
import signal
import socket
import subprocess
import time


def family(pid):
    """The process and its descendants."""
    out = [pid]
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            with open(path) as f:
                for child in f.read().split():
                    out += family(int(child))
        except OSError:
            pass
    return out


def cpu(pid):
    """Nanoseconds of each thread of a family so far."""
    out = {}
    for one in family(pid):
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/schedstat") as f:
                    out[task] = int(f.read().split()[0])
        except OSError:
            pass
    return out


def spent(before, after):
    """Microseconds between two accounts. A thread that has ended in between does not take its earlier time away."""
    return sum(now - before.get(task, 0) for task, now in after.items()) / 1e3


def pss(pid):
    """The proportional memory of a family in KiB."""
    total = 0
    for one in family(pid):
        try:
            with open(f"/proc/{one}/smaps_rollup") as f:
                total += int(re.search(r"^Pss:\s+(\d+)", f.read(), re.M)[1])
        except OSError:
            pass
    return total


def free_base(count):
    """The first of `count` free ports in a row, below those that the kernel gives to clients."""
    while True:
        base = random.randrange(10000, 32000 - count)
        try:
            for port in range(base, base + count):
                with socket.socket() as s:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    s.bind(("127.0.0.1", port))
            return base
        except OSError:
            continue


class Process:
    """A program on one CPU, with its output in a file."""

    def __init__(self, command, core, log):
        self.command, self.core, self.log = command, core, log
        self.start()

    def start(self):
        with open(self.log, "w") as out:
            self.child = subprocess.Popen(["taskset", "-c", self.core, *self.command], stdin=subprocess.DEVNULL, stdout=out,
                                          stderr=subprocess.STDOUT)

    @property
    def pid(self):
        return self.child.pid

    def answers(self, port, seconds=20):
        """Waits until the port takes connections. False if the program ends or takes too long."""
        limit = time.monotonic() + seconds
        while self.child.poll() is None and time.monotonic() < limit:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return True
            except OSError:
                time.sleep(0.05)
        return False

    def stop(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        try:
            self.child.wait(8)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def tail(self):
        """The last lines of the output, for a message."""
        with open(self.log, errors="replace") as f:
            return f.read()[-600:].strip()
