#!/bin/sh
# Adds the IPv6 address to the first server, if it is as it came and the machine has IPv6.
set -e
conf=/etc/nginx/conf.d/default.conf

note() {
	[ -n "${NGINX_ENTRYPOINT_QUIET_LOGS:-}" ] || echo "$0: $*"
}

[ -e /proc/net/if_inet6 ] || { note "there is no IPv6 here" && exit 0; }
[ -f "$conf" ] || { note "there is no $conf" && exit 0; }
cmp -s "$conf" /usr/share/forebay/default.conf || { note "$conf has been changed: it stays as it is" && exit 0; }
[ -w "$conf" ] || { note "$conf cannot be written" && exit 0; }
# Not by sed -i, which renames: the file may be a mount.
changed=$(sed 's/^\( *\)listen 80;$/&\n\1listen [::]:80;/' "$conf")
printf '%s\n' "$changed" >"$conf"
note "$conf listens on [::]:80, too"
