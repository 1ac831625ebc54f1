//! Rules about a running server.

use super::live::Running;
use super::rule_table;

/// Looks for one problem, and reports it.
pub(super) type Check = fn(&Running, &mut dyn FnMut(String));

/// Reports how often a message is in the error log.
fn logged(r: &Running, message: &str, found: &mut dyn FnMut(String)) {
    let n = r.lines(message);
    if let (Some((file, _)), true) = (&r.log, n > 0) {
        found(format!("{}: {n} lines with \"{message}\"", file.display()));
    }
}

rule_table! { Check;
    "log-connections" Harm "connections were refused for want of worker_connections"
    "The running server wrote so: clients were cut off."
    "Raise worker_connections, and worker_rlimit_nofile with it."
    |r, found| logged(r, "worker_connections are not enough", found),
    "log-descriptors" Harm "the running server ran out of descriptors"
    "Accepting fails then, and so does opening files: accepted clients get 500. Forebay reuses idle connections instead, or has new ones wait."
    "worker_rlimit_nofile, or LimitNOFILE of the unit."
    |r, found| {
        logged(r, "Too many open files", found);
        // Forebay stops accepting before the kernel refuses descriptors.
        logged(r, "descriptors are not enough", found);
    },
    "log-request-files" Advice "request bodies went to temporary files"
    "They were larger than client_body_buffer_size."
    "Raise client_body_buffer_size to the usual size of uploads, if memory allows."
    |r, found| logged(r, "a client request body is buffered to a temporary file", found),
    "log-response-files" Warning "responses went to temporary files"
    "They outgrew all proxy_buffers while the client was slower than the upstream."
    "Larger proxy_buffers, or proxy_max_temp_file_size 0; so that the upstream waits instead."
    |r, found| logged(r, "an upstream response is buffered to a temporary file", found),
    "log-ports" Harm "no local port was left for an upstream"
    "Each connection to the same upstream needs one, and keeps it for a minute after its end."
    "keepalive in the upstream block; several addresses of it."
    |r, found| logged(r, "Cannot assign requested address", found),
    "log-stapling" NoEffect "stapling is on and ignored"
    "The certificate names no responder."
    "Remove ssl_stapling."
    |r, found| logged(r, "\"ssl_stapling\" ignored", found),
    "log-no-upstream" Harm "all servers of an upstream were taken for failed"
    "Requests got 502 meanwhile, and sessions of stream ended."
    "Look at max_fails and fail_timeout, and at the upstream itself."
    |r, found| logged(r, "no live upstreams", found),
    "log-upstream-slow" Warning "an upstream did not answer in time"
    "Clients got 504."
    "The upstream, or proxy_read_timeout where it needs longer by its nature."
    |r, found| logged(r, "upstream timed out", found),
    "descriptors-used" Warning "the running server is near its limit of descriptors"
    "Read from /proc for each of its processes; the limit of the master says nothing about the workers."
    "worker_rlimit_nofile, or LimitNOFILE of the unit."
    |r, found| for (used, most) in &r.descriptors {
        if *used * 10 >= *most * 8 {
            found(format!("{used} of {most} are in use"));
        }
    },
    "handled-gap" Warning "connections were accepted and not handled"
    "stub_status counts them; it is worker_connections that ran out, not descriptors: those do not show there."
    "Raise worker_connections."
    |r, found| if let Some((accepted, handled)) = r.accepted.filter(|(a, h)| a > h) {
        found(format!("{} of {accepted}", accepted - handled));
    },
}
