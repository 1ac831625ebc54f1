"""Compares access logs with what the clients have counted, and looks for what must not be in error logs."""

import collections
import glob
import re


def access(directory):
    """Lines of all access logs by the id of their request."""
    lines, others = collections.defaultdict(list), 0
    for path in glob.glob(f"{directory}/logs/access.log*"):
        with open(path, errors="replace") as f:
            for line in f:
                words = line.rstrip("\n").split("|")
                if len(words) != 12 or not line.endswith("\n"):
                    others += 1
                elif words[1] == "-":
                    # Heads that were not complete.
                    pass
                else:
                    lines[words[1]].append(words)
    return lines, others


def requests(directory):
    """What became of each request, and the ids of all."""
    done, sent = {}, set()
    for path in glob.glob(f"{directory}/requests-*"):
        with open(path) as f:
            for line in f:
                words = line.split()
                if words[0] == "S":
                    sent.add(words[1])
                else:
                    done[words[1]] = words
    return done, sent


def compare(directory, judge, began):
    """Finds answered requests without exactly one right line, and lines without a request. Returns the numbers of both."""
    lines, broken = access(directory)
    done, sent = requests(directory)
    if broken:
        judge.add("log", "access.log", f"{broken} lines are not whole")
    answered = 0
    # A thread that hangs keeps lines, and goes with them where its process has to be killed.
    lost = any(f["kind"] in ("dead-thread", "upgrade") for f in judge.findings.values())
    for id, (state, _, status, wire, method, end) in done.items():
        found = lines.get(id, [])
        if id.startswith("st"):
            continue
        end = float(end)
        if state == "A" and len(found) == 1 and found[0][2] == status and (not id.startswith("h1") or method == "HEAD" or found[0][3] == wire):
            answered += 1
            continue
        # Looking for one is slow, and an hour has a million requests.
        excuse = judge.during(end - 2, end + 1, {"broken"}) in ("kill", "memory", "stuck")
        if len(found) > 1 and not excuse:
            judge.add("log-twice", "access.log", f"{id} has {len(found)} lines: {found}")
        if state != "A":
            continue
        answered += 1
        if not found and not excuse and not lost:
            judge.add("log-missing", "access.log", f"{id} was answered with {status} at {end - began:.1f} s and has no line")
        elif found and found[0][2] != status and not (found[0][2] == "499" and excuse):
            judge.add("log-status", "access.log", f"{id} was answered with {status}, the line says {found[0]}")
        elif found and id.startswith("h1") and method != "HEAD" and found[0][3] != wire:
            judge.add("log-bytes", "access.log", f"{id} had {wire} bytes, the line says {found[0]}")
    for id in lines:
        if id not in sent:
            judge.add("log-unknown", "access.log", f"no client has sent {id}: {lines[id]}")
    return answered, sum(len(found) for found in lines.values())


# What disturbances bring with them.
EXPECTED = [r"exited on signal 9", r"worker process \d+ (exited|was killed)", r"\(24: ", r"ignore long locked inactive cache entry"]


def errors(directory, judge):
    """Finds lines of level alert and emerg, panics, and calm upstream servers that were taken out."""
    levels = collections.Counter()
    for path in glob.glob(f"{directory}/logs/error.log*"):
        with open(path, errors="replace") as f:
            for line in f:
                level = re.search(r"\[(\w+)\]", line)
                levels[level[1] if level else "none"] += 1
                if "panic" in line:
                    judge.add("panic", "error.log", line.strip())
                elif level and level[1] in ("alert", "emerg") and not any(re.search(e, line) for e in EXPECTED):
                    judge.add("error-log", level[1], line.strip())
                elif "no live upstreams" in line and re.search(r'upstream: "\w+://calm', line):
                    judge.add("own-shortage", "calm upstreams", line.strip())
                elif "temporarily disabled" in line and not re.search(r"upstream: .*:%d", line):
                    levels["disabled"] += 1
    return levels
