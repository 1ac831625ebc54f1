#!/bin/sh
# Writes configuration from templates: ${NAME} becomes the value of a variable of the environment. A name that is not in the
# environment, as $host, stays as it is.
set -e
templates=${NGINX_ENVSUBST_TEMPLATE_DIR:-/etc/nginx/templates}
suffix=${NGINX_ENVSUBST_TEMPLATE_SUFFIX:-.template}
output=${NGINX_ENVSUBST_OUTPUT_DIR:-/etc/nginx/conf.d}
stream_suffix=${NGINX_ENVSUBST_STREAM_TEMPLATE_SUFFIX:-.stream-template}
stream_output=${NGINX_ENVSUBST_STREAM_OUTPUT_DIR:-/etc/nginx/stream-conf.d}

note() {
	[ -n "${NGINX_ENTRYPOINT_QUIET_LOGS:-}" ] || echo "$0: $*"
}

# Variables that are replaced: those whose name matches NGINX_ENVSUBST_FILTER.
names() {
	FILTER=${NGINX_ENVSUBST_FILTER:-} awk 'BEGIN {
		for (name in ENVIRON)
			if (name ~ /^[A-Za-z_][A-Za-z0-9_]*$/ && name ~ ENVIRON["FILTER"] && name != "FILTER") printf "${%s} ", name
	}'
}

# SUFFIX DIRECTORY: fills the templates with the suffix; directories below stay.
fill() {
	find -L "$templates" -type f -name "*$1" | sort | while IFS= read -r template; do
		name=${template#"$templates"/}
		target=$2/${name%"$1"}
		mkdir -p "${target%/*}"
		note "$template to $target"
		envsubst "$known" <"$template" >"$target"
	done
}

# Makes nginx.conf include what is written for `stream`, unless it has such a block.
include_stream() {
	conf=/etc/nginx/nginx.conf
	if grep -q "^[[:space:]]*stream[[:space:]]*{" "$conf"; then
		note "$conf has a stream block: it has to include $stream_output/*.conf"
	elif [ -w "$conf" ]; then
		printf '\n# Added by %s.\nstream {\n    include %s/*.conf;\n}\n' "$0" "$stream_output" >>"$conf"
		note "$conf includes $stream_output/*.conf"
	else
		note "$conf cannot be written: it has to include $stream_output/*.conf in a stream block"
	fi
}

[ -d "$templates" ] || exit 0
mkdir -p "$output" 2>/dev/null || true
[ -w "$output" ] || { note "$templates exists, but $output cannot be written" && exit 0; }
known=$(names)
fill "$suffix" "$output"
[ -n "$(find -L "$templates" -type f -name "*$stream_suffix")" ] || exit 0
mkdir -p "$stream_output" 2>/dev/null || true
[ -w "$stream_output" ] || { note "$stream_output cannot be written" && exit 0; }
fill "$stream_suffix" "$stream_output"
include_stream
