"""A control group for the memory of the server, of version 1 or 2."""

import os
import re

import server as processes


class Group:
    """Bounds what a set of processes has in memory. Raises OSError where no group can be made."""

    def __init__(self, name):
        lines = dict(re.findall(r"^\d+:(.*?):(.*)$", processes.read("/proc/self/cgroup"), re.M))
        self.old = "memory" in lines
        if self.old:
            self.path = f"/sys/fs/cgroup/memory{lines['memory'].rstrip('/')}/{name}"
            self.used, self.limit, self.none = "memory.usage_in_bytes", "memory.limit_in_bytes", "-1"
        else:
            self.path = f"/sys/fs/cgroup{lines.get('', '').rstrip('/')}/{name}"
            self.used, self.limit, self.none = "memory.current", "memory.max", "max"
        os.mkdir(self.path)
        try:
            os.stat(f"{self.path}/{self.limit}")
        except OSError:
            self.remove()
            raise

    def write(self, file, text):
        with open(f"{self.path}/{file}", "w") as f:
            f.write(text)

    def join(self):
        """Puts this process, and those that it starts, into the group."""
        self.write("cgroup.procs", str(os.getpid()))

    def tighten(self, room):
        """Leaves the processes so many bytes beyond what they have now, without the pages of files that can be read again."""
        try:
            self.write("memory.force_empty" if self.old else "memory.reclaim", "1G")
        except OSError:
            # It says so when it could not free everything.
            pass
        try:
            self.write(self.limit, str(int(processes.read(f"{self.path}/{self.used}")) + room))
        except OSError:
            # They have taken more meanwhile than can be reclaimed: there is no shortage this time.
            pass

    def release(self):
        self.write(self.limit, self.none)

    def remove(self):
        try:
            os.rmdir(self.path)
        except OSError:
            pass
