"""What a client process tells main.py, and the file in which it keeps what became of each request."""

import collections
import json
import threading
import time

import check


class Report:
    def __init__(self, path):
        self.file = open(path, "w", buffering=1 << 16)
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.sent = time.monotonic()

    def begin(self, id):
        """A request with this id is about to be sent."""
        with self.lock:
            self.file.write(f"S {id}\n")

    def done(self, outcome, checked):
        """Takes the outcome of a request, and says what is wrong with it."""
        outcome.end = time.monotonic()
        request = outcome.request
        state = "A" if outcome.complete else "L" if outcome.left else "E"
        wrong = check.verdict(outcome, checked)
        with self.lock:
            self.file.write(f"{state} {request.id} {outcome.status} {outcome.wire} {request.method} {outcome.end:.2f}\n")
            self.counts["requests"] += 1
            self.counts[{"A": "answered", "L": "left", "E": "broken"}[state]] += 1
            self.counts[f"case {request.case.name}"] += 1
            if outcome.complete and checked.expected is not None and not checked.problem:
                self.counts["bodies"] += 1
                self.counts["bytes"] += checked.at
        if wrong:
            self.wrong(request.case.name, outcome.start, outcome.end, outcome.session, request.id, wrong[0],
                       f"{request.method} {request.target()} {dict(request.headers)} status {outcome.status}: {wrong[1]}")

    def wrong(self, case, start, end, session, id, kind, text):
        self.say({"kind": "wrong", "case": case, "start": start, "end": end, "session": session, "id": id, "what": kind, "text": text})

    def say(self, what):
        with self.lock:
            print(json.dumps(what), flush=True)

    def tick(self):
        """Sends the counts, once a second at most."""
        with self.lock:
            now = time.monotonic()
            if now < self.sent + 1:
                return
            self.sent = now
            counts, self.counts = self.counts, collections.Counter()
            print(json.dumps({"kind": "counts", "counts": counts}), flush=True)

    def close(self):
        self.sent = 0
        self.tick()
        self.file.close()
