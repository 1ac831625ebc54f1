"""Which findings explain themselves by what was done to the server at that time, and the list of those that do not."""

import collections
import threading
import time

# What may happen while something is done to the server, and for how many seconds afterwards. Wrong bytes never may.
EXCUSES = {
    # What was under way is lost with a worker.
    "kill": ({"broken", "unanswered", "refused", "hang"}, 3),
    # The kernel may kill a worker, and the next one, and what is not killed waits for pages.
    "memory": ({"broken", "unanswered", "refused", "hang", "liveness"}, 3),
    # Found once for all that hang with the thread.
    "stuck": ({"broken", "unanswered", "refused", "hang", "liveness"}, 3),
    # A shortage is one for all.
    "few": ({"broken", "unanswered", "refused", "status", "hang", "liveness"}, 3),
    "disk": ({"disk-status", "disk-broken"}, 1),
}
# An old worker process of nginx closes idle connections at once, and has its QUIC connections to itself.
EXCUSES_NGINX = {
    "certificates": ({"unanswered", "broken", "quic-hang"}, 10),
    "reload": ({"unanswered", "broken", "quic-hang"}, 10),
    "upgrade": ({"unanswered", "broken", "quic-hang"}, 30),
    "disk": ({"disk-status", "disk-broken", "status", "broken", "unanswered"}, 3),
}


# Requests on kept connections that may cross the close of an old process, in one upgrade. An idle connection is closed half a second after QUIT, and
# a client that is asked to wait between its look at the connection and its request sees that as a loss.
CROSSED = 3
# Seconds after which it is known what was going on at a time.
PATIENCE = 40


class Judge:
    def __init__(self, forebay, replay):
        self.excuses = dict(EXCUSES) if forebay else {**EXCUSES, **EXCUSES_NGINX}
        self.replay, self.begun = replay, time.monotonic()
        self.windows, self.findings, self.excused, self.pending = [], {}, collections.Counter(), []
        self.lock = threading.Lock()

    def window(self, kind, since=0):
        """Begins a time in which something is done; `close` ends it."""
        window = {"kind": kind, "start": time.monotonic() - since, "end": None}
        with self.lock:
            self.windows.append(window)
        return window

    def close(self, window):
        window["end"] = time.monotonic()

    def during(self, start, end, kinds):
        """Finds what excuses one of these kinds of trouble between two times."""
        for window in list(self.windows):
            names, grace = self.excuses.get(window["kind"], (set(), 0))
            if names & kinds and start <= (window["end"] or 1e12) + grace and end >= window["start"]:
                return window["kind"]
        return None

    def wrong(self, message, case):
        """Takes what a client says is wrong. What may be excused is decided later: a dead thread is found after those that hang by it."""
        if message["what"].isupper():
            self.found(message)
        else:
            with self.lock:
                self.pending.append((message, case))

    def decide(self, all=False):
        with self.lock:
            due = [p for p in self.pending if all or p[0]["end"] < time.monotonic() - PATIENCE]
            self.pending = [p for p in self.pending if p not in due]
        for message, case in due:
            kinds = {message["what"]}
            if case is not None and case.disk:
                kinds.add("disk-" + message["what"])
            if message["session"].startswith("h3"):
                kinds.add("quic-" + message["what"])
            excuse = self.during(message["start"], message["end"], kinds) or self.crossed(message)
            if excuse:
                self.excused[f"{message['what']} during {excuse}"] += 1
            else:
                self.found(message)

    def crossed(self, message):
        """Takes a request that the end of an old process may have crossed, up to a number of them for each upgrade."""
        if message["what"] != "unanswered" or not message["session"].startswith("h1"):
            return None
        for window in self.windows:
            if window["kind"] == "upgrade" and window["start"] <= message["end"] <= window["start"] + 5:
                window["crossed"] = window.get("crossed", 0) + 1
                return "upgrade" if window["crossed"] <= CROSSED else None
        return None

    def found(self, message):
        near = [f"{w['kind']} {message['end'] - w['start']:.1f} s before" for w in self.windows if w["start"] < message["end"]][-3:]
        self.add(message["what"], message["case"], f"[{message['session']}] {message['text']}", near, message["end"])

    def add(self, kind, where, text, near=(), at=None):
        with self.lock:
            found = self.findings.setdefault(f"{kind} {where}", {"kind": kind, "where": where, "count": 0, "examples": [], "first": None})
            found["count"] += 1
            if found["first"] is None:
                found["first"] = round((at or time.monotonic()) - self.begun, 1)
            if len(found["examples"]) < 5:
                found["examples"].append(text)
            if found["count"] > 2:
                return
        after = f" (after: {', '.join(near)})" if near else ""
        print(f"FINDING {kind} in {where}, {found['first']} s: {text}{after}\n    again: {self.replay}", flush=True)
