# Functions that change the program of a running master by nginx's signals. They are put into the maintainer scripts.

# Title of a process, as ps shows it.
title() {
	tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline" || true
}

# Pid of the master that a pid file names; nothing if there is none.
master() {
	# It goes and comes while a master is being replaced.
	pid=$(cat "$1" 2>/dev/null) || return 0
	case "$(title "$pid")" in
	"nginx: master"*) echo "$pid" ;;
	esac
}

# Returns 0 if a master has a worker that serves. That of Forebay has threads by then.
serves() {
	for worker in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do
		case "$(readlink "/proc/$worker/exe")" in
		*/forebay*) [ "$(ls "/proc/$worker/task" | wc -l)" -le 1 ] || return 0 ;;
		*) case "$(title "$worker")" in "nginx: worker"*) return 0 ;; esac ;;
		esac
	done
	return 1
}

# Waits until a command is true, at most so many tenths of a second.
within() {
	tenths=$1
	shift
	until "$@"; do
		[ "$tenths" -gt 0 ] || return 1
		tenths=$((tenths - 1))
		sleep 0.1
	done
}

replaced() {
	new=$(master "$1")
	[ -n "$new" ] && [ "$new" != "$2" ] && serves "$new"
}

gone() {
	[ ! -e "/proc/$1" ]
}

# handover PIDFILE: has the master replace itself by the program that is now at the path it was started from, and ends the
# old one when the new one serves. Both have the same sockets meanwhile: no client is refused. Returns 1 if the old one stays.
handover() {
	old=$(master "$1")
	[ -n "$old" ] || return 0
	# nginx takes one of the sockets that Forebay's threads have for an address. The kernel gives the connections that
	# wait in the others to it.
	migrate=/proc/sys/net/ipv4/tcp_migrate_req
	before=$(cat $migrate 2>/dev/null || echo none)
	[ "$before" != 0 ] || echo 1 2>/dev/null >$migrate || true
	kill -USR2 "$old"
	if within 300 replaced "$1" "$old"; then
		kill -QUIT "$old"
		# The last requests may take long. They are finished without us.
		within 50 gone "$old" || true
		result=0
	else
		echo "The process $old of the web server has not been replaced and goes on. See its error log." >&2
		result=1
	fi
	[ "$before" != 0 ] || echo 0 2>/dev/null >$migrate || true
	return $result
}

# Pid file of a configuration.
pid_file() {
	found=$(sed -n 's/^[[:space:]]*pid[[:space:]]\{1,\}\([^;]*\);.*/\1/p' "$1" 2>/dev/null | tail -n 1)
	echo "${found:-$2}"
}
