"""Server of the interoperability matrix on ngtcp2: becomes its example program. See README.md for what it is called with."""

import os
import sys

# It returns no hash of what is sent to it, and begins no key update.
UNSUPPORTED = ["upload", "uploadloss", "keyupdate"]


def main():
    case, address, dir = sys.argv[1:]
    if case in UNSUPPORTED:
        sys.exit(127)
    host, port = address.rsplit(":", 1)
    certificate = f"{dir}/large.pem" if case in ("resumption", "amplificationlimit") else f"{dir}/cert.pem"
    options = ["--quiet", f"--htdocs={dir}/html", "--handshake-timeout=60s", *(["--validate-addr"] if case == "retry" else [])]
    # Debian has it where only the administrator's PATH leads.
    os.environ["PATH"] += ":/usr/sbin"
    os.execvp("gtlsserver", ["gtlsserver", *options, host, port, f"{dir}/key.pem", certificate])


main()
