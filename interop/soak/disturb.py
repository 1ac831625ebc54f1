"""What is done to the server while it works, one thing after another."""

import fcntl
import glob
import os
import resource
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time

import conf
import server as processes

WEIGHTS = {"reload": 6, "certificates": 1, "usr1": 1.5, "upgrade": 0.7, "kill": 0.5, "few": 0.7, "memory": 0.7, "disk": 0.8, "vanish": 3, "move": 2, "sweep": 3}


def certificate(directory, name):
    new = f"{directory}/{name}"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{new}.key.new",
                    "-out", f"{new}.pem.new", "-days", "30", "-subj", "/CN=soak.test"], check=True, stderr=subprocess.DEVNULL)
    os.rename(f"{new}.key.new", f"{new}.key")
    os.rename(f"{new}.pem.new", f"{new}.pem")


def presented(port, tries=8):
    """Certificate of the server; of several tries one meets a thread that answers."""
    for _ in range(tries):
        try:
            return handshake(port)
        except OSError:
            time.sleep(0.2)
    return None


def handshake(port):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 5) as s, context.wrap_socket(s, server_hostname="soak.test") as t:
        return t.getpeercert(binary_form=True)


class Disturber(threading.Thread):
    def __init__(self, server, judge, origin, rng, chosen, write_conf):
        super().__init__(daemon=True)
        self.server, self.judge, self.origin, self.rng, self.write_conf = server, judge, origin, rng, write_conf
        self.names = [name for name in WEIGHTS if chosen.search(name) and (name != "memory" or server.group)]
        self.stopped = threading.Event()
        self.counts, self.variant, self.address, self.logs = {name: 0 for name in self.names}, 0, 0, 0
        self.generations = 1

    def run(self):
        # Each of them once, then by weight.
        first = list(self.names)
        self.rng.shuffle(first)
        while self.names and not self.stopped.wait(self.rng.uniform(1.5, 4)):
            name = first.pop() if first else self.rng.choices(self.names, [WEIGHTS[n] for n in self.names])[0]
            window = self.judge.window(name)
            try:
                getattr(self, name)()
            except Exception as e:  # noqa: BLE001
                self.judge.add("fault", name, f"{type(e).__name__}: {e}")
            self.judge.close(window)
            self.counts[name] += 1

    def reload(self):
        self.variant = (self.variant + self.rng.randrange(1, conf.VARIANTS)) % conf.VARIANTS
        self.write_conf(self.variant)
        self.server.signal("HUP")
        time.sleep(0.5)

    def certificates(self):
        before = presented(self.server.ports["TLS"])
        certificate(self.server.directory, "server")
        self.server.signal("HUP")
        if not processes.wait_until(lambda: presented(self.server.ports["TLS"]) not in (None, before), 15, 0.5):
            self.judge.add("certificate", "certificates", "the new one is not presented 15 s after a reload")

    def usr1(self):
        self.logs += 1
        for name in ["access", "stream", "error"]:
            os.rename(f"{self.server.directory}/logs/{name}.log", f"{self.server.directory}/logs/{name}.log.{self.logs}")
        self.server.signal("USR1")
        if not processes.wait_until(lambda: os.path.exists(f"{self.server.directory}/logs/access.log"), 10):
            self.judge.add("usr1", "logs", "no new access.log 10 s after USR1")

    def upgrade(self):
        old = self.server.master()
        # A second upgrade has to wait for the end of the first one.
        if any(processes.alive(pid) for pid in self.server.masters - {old}):
            return
        workers = self.server.workers(old)
        self.server.signal("USR2", old)
        if not processes.wait_until(lambda: self.server.master() not in (0, old) and self.server.workers(), 15):
            self.judge.add("upgrade", "USR2", "no new master with workers after 15 s")
            return
        time.sleep(0.3)
        self.generations += 1
        self.server.signal("QUIT", old)
        ending = threading.Thread(target=self.see_end, args=(old, workers), daemon=True)
        ending.start()
        # The old processes may take their time, but what they lose is lost at the beginning.
        ending.join(2)

    def see_end(self, old, workers):
        """Waits for the processes of before the upgrade."""
        if processes.wait_until(lambda: not processes.alive(old), 60) or self.stopped.is_set() or not self.server.forebay:
            return
        self.judge.add("upgrade", "QUIT", f"the old processes {old}, {workers} do not end within 60 s")
        self.server.last_kill = time.time()
        for pid in workers + [old]:
            if processes.alive(pid):
                self.server.signal("KILL", pid)

    def kill(self):
        before = self.server.workers()
        if not before:
            return
        victim = self.rng.choice(before)
        self.generations += 1
        self.server.signal("KILL", victim)
        self.server.last_kill = time.time()
        if not processes.wait_until(lambda: len(self.server.workers()) >= len(before) and victim not in self.server.workers() and self.server.ping(), 15):
            self.judge.add("kill", "worker", "no new worker within 15 s")

    def few(self):
        """Leaves the workers few descriptors."""
        changed = []
        for pid in self.server.workers():
            now = processes.descriptors(pid)[0]["all"]
            limits = resource.prlimit(pid, resource.RLIMIT_NOFILE, (now + self.rng.randrange(0, 25), resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))
            changed.append((pid, limits))
        time.sleep(3)
        for pid, limits in changed:
            if processes.alive(pid):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)

    def memory(self):
        """Leaves the server little memory. The kernel may kill a worker process for it."""
        before = self.server.workers()
        # The master starts another one, but nobody starts another master.
        for pid in before:
            with open(f"/proc/{pid}/oom_score_adj", "w") as f:
                f.write("1000")
        self.server.group.tighten(self.rng.randrange(0, 24 << 20))
        try:
            time.sleep(3)
        finally:
            self.server.group.release()
        if not processes.wait_until(lambda: len(self.server.workers()) >= len(before) and self.server.ping(), 15):
            self.judge.add("memory", "worker", "no worker 15 s after the shortage")
        if set(before) - set(self.server.workers()):
            self.server.last_kill = time.time()

    def disk(self):
        """Fills the file system of temporary files and caches."""
        path = f"{self.server.disk}/filler"
        with open(path, "wb", buffering=0) as f:
            for size in [1 << 20, 4096]:
                try:
                    while True:
                        f.write(b"\0" * size)
                except OSError:
                    pass
            end = time.monotonic() + 3
            while time.monotonic() < end:
                try:
                    f.write(b"\0" * 4096)
                except OSError:
                    time.sleep(0.05)
        os.unlink(path)

    def vanish(self):
        self.origin.tell(f"vanish {self.rng.uniform(0.1, 1.5):.2f}")

    def move(self):
        self.address = (self.address + 1) % 3
        self.origin.tell(f"move 127.0.0.{2 + self.address}")

    def sweep(self):
        """Removes stored files, so that these are fetched again."""
        for path in glob.glob(f"{self.server.disk}/store/dav/*"):
            remove(path, 40)
        for path in glob.glob(f"{self.server.disk}/store/store/*") + glob.glob(f"{self.server.disk}/store/x/xstore/*"):
            if self.rng.random() < 0.5:
                remove(path, 0)


def remove(path, older):
    try:
        if time.time() - os.stat(path).st_mtime > older:
            os.unlink(path)
    except OSError:
        pass


def loopback():
    """Brings up the loopback interface of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0x1))  # SIOCSIFFLAGS, IFF_UP


def mount(disk, megabytes):
    os.makedirs(disk, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0777", "soak", disk], check=True)


def unmount(disk):
    subprocess.run(["umount", "-l", disk], check=False, stderr=subprocess.DEVNULL)
    shutil.rmtree(disk, ignore_errors=True)
