#!/bin/sh
# Prepares the container by the files of /docker-entrypoint.d/ and becomes the command. Nothing is prepared for other commands
# than the server.
set -e

note() {
	[ -n "${NGINX_ENTRYPOINT_QUIET_LOGS:-}" ] || echo "$0: $*"
}

# Names may contain blanks, but no line breaks.
prepare() {
	IFS='
'
	set -f
	for file in $(find -L /docker-entrypoint.d -mindepth 1 -maxdepth 1 -type f | sort -V); do
		unset IFS
		set +f
		case $file in
		*.envsh | *.sh) [ -x "$file" ] || { note "$file is not executable: ignored" && continue; } ;;
		*) note "$file is neither *.sh nor *.envsh: ignored" && continue ;;
		esac
		note "running $file"
		case $file in
		*.envsh) . "$file" ;; # It may set variables for those that follow and for the server.
		*) "$file" ;;
		esac
	done
	unset IFS
	set +f
}

case ${1##*/} in
nginx | forebay) prepare ;;
esac
exec "$@"
