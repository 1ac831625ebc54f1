#!/bin/sh
# Leaves the number of threads to Forebay, if NGINX_ENTRYPOINT_WORKER_PROCESSES_AUTOTUNE is set: `auto` is what the CPUs and
# the control group of the container allow.
set -e
conf=/etc/nginx/nginx.conf

note() {
	[ -n "${NGINX_ENTRYPOINT_QUIET_LOGS:-}" ] || echo "$0: $*"
}

[ -n "${NGINX_ENTRYPOINT_WORKER_PROCESSES_AUTOTUNE:-}" ] || exit 0
[ -w "$conf" ] || { note "$conf cannot be written" && exit 0; }
changed=$(sed 's/^\([[:space:]]*worker_processes[[:space:]]\).*;/\1auto;/' "$conf")
printf '%s\n' "$changed" >"$conf"
note "worker_processes is auto"
