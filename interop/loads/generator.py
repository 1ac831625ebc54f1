"""The generators of load: load.c and h2load, on the other CPU."""

import itertools
import os
import re
import subprocess
import time
from dataclasses import dataclass

import process

# Numbers that load.c puts into requests: those of one run follow those of the runs before.
serials = itertools.count(int(time.time()) % 100000 * 100000, 1000000)


@dataclass
class Sample:
    """What a server did under one load."""

    units: int = 0
    # Microseconds of CPU time for a unit.
    cpu: float = 0
    p99: int = 0
    errors: int = 1
    # Bytes for a unit, and units a second.
    bytes: float = 0
    rate: float = 0
    remark: str = ""


def write_requests(work, case):
    """Writes what load.c reads: for each request a line with its length, and its bytes."""
    os.makedirs(f"{work}/req", exist_ok=True)
    with open(f"{work}/req/{case.name}", "wb") as f:
        for one in case.requests:
            f.write(b"%d\n" % len(one) + one)


def options(work, case):
    return [option.replace("@work@", work) for option in case.options]


def command(work, case, port, seconds, connections=None):
    return ["taskset", "-c", "1", f"{work}/load.bin", "-p", str(port), "-f", f"{work}/req/{case.name}",
            "-c", str(connections or case.connections), "-d", str(seconds), "-x", str(case.status), "-u", str(next(serials)),
            *(["-T"] if case.tls else []), *options(work, case)]


def run(work, case, port, seconds, pid, connections=None):
    """Puts a server under load and returns a sample."""
    if case.h2load:
        return run_h2load(work, case, port, seconds, pid)
    load = subprocess.Popen(command(work, case, port, seconds, connections), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
    line = load.stdout.readline()
    if not line.startswith("ready"):
        load.kill()
        load.wait()
        return Sample(remark=line.strip())
    before = process.cpu(pid)
    load.stdin.write("go\n")
    load.stdin.flush()
    line = load.stdout.readline()
    after = process.cpu(pid)
    load.stdin.close()
    load.wait()
    # done UNITS ERRORS P50 P99 MAX BYTES SECONDS RESUMED RECONNECTS STATUSES MESSAGE
    parts = line.split(None, 11)
    if len(parts) < 11:
        return Sample(remark=line.strip())
    units, errors, p99, received, resumed, reconnects = (int(parts[i]) for i in (1, 2, 4, 6, 8, 9))
    remarks = []
    if "-R" in case.options and resumed < units * 0.9:
        remarks.append(f"{resumed} of {units} sessions resumed")
    if reconnects and "-k" not in case.options:
        remarks.append(f"{reconnects} connections closed by the server")
    if errors:
        remarks.append(f"{errors} errors: {''.join(parts[11:]).strip()} {parts[10]}")
    each = max(units, 1)
    return Sample(units, process.spent(before, after) / each, p99, errors, received / each, units / float(parts[7]), ", ".join(remarks))


def run_h2load(work, case, port, seconds, pid):
    log = f"{work}/h2load.log"
    open(log, "w").close()
    url = f"{'https://localhost' if case.tls else 'http://127.0.0.1'}:{port}{case.path}"
    load = subprocess.Popen(
        ["stdbuf", "-oL", "taskset", "-c", "1", "h2load", "-t1", f"-c{case.connections}", "-m10", f"-D{int(seconds * 1000)}ms",
         "--warm-up-time=400ms", f"--log-file={log}", *options(work, case), url],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    before = after = None
    lines = []
    for line in load.stdout:
        lines.append(line)
        if "duration is started" in line:
            before = process.cpu(pid)
        elif "duration is over" in line or "Stopping all clients" in line:
            after = after or process.cpu(pid)
    load.wait()
    out = "".join(lines)
    counts = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored", out)
    if not (counts and before and after):
        return Sample(remark=out[-200:].replace("\n", " "))
    codes = re.search(r"status codes: \d+ 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", out)
    rate = re.search(r"finished in [\d.]+\w+, ([\d.]+) req/s", out)
    data = re.search(r"\((\d+)\) data", out) or re.search(r"traffic: [\d.]+\w+ \((\d+)\) total", out)
    units = int(counts[1])
    errors = sum(map(int, counts.groups()[1:])) + sum(map(int, codes.groups() if codes else []))
    with open(log) as f:
        times = sorted(int(line.split()[2]) for line in f if len(line.split()) > 2)
    each = max(units, 1)
    return Sample(units, process.spent(before, after) / each, times[int(len(times) * 0.99)] if times else 0, errors,
                  int(data[1]) / each if data else 0, float(rate[1]) if rate else 0, f"{errors} errors" if errors else "")
