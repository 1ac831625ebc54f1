//! Rules about a running server.

use super::checks;
use crate::facts::live::Running;

/// Looks for one problem, and reports it.
pub(crate) type Check = fn(&Running, &mut dyn FnMut(String));

/// Reports how often a message is in the error log.
fn logged(r: &Running, message: &str, found: &mut dyn FnMut(String)) {
    let n = r.lines(message);
    if let (Some((file, _)), true) = (&r.log, n > 0) {
        found(format!("{}: {n} lines with \"{message}\"", file.display()));
    }
}

checks! { Check;
    "log-connections" |r, found| logged(r, "worker_connections are not enough", found),
    "log-descriptors" |r, found| {
        logged(r, "Too many open files", found);
        // Forebay stops accepting before the kernel refuses descriptors.
        logged(r, "descriptors are not enough", found);
    },
    "log-request-files" |r, found| logged(r, "a client request body is buffered to a temporary file", found),
    "log-response-files" |r, found| logged(r, "an upstream response is buffered to a temporary file", found),
    "log-ports" |r, found| logged(r, "Cannot assign requested address", found),
    "log-stapling" |r, found| logged(r, "\"ssl_stapling\" ignored", found),
    "log-no-upstream" |r, found| logged(r, "no live upstreams", found),
    "log-upstream-slow" |r, found| logged(r, "upstream timed out", found),
    "descriptors-used" |r, found| for (used, most) in &r.descriptors {
        if *used * 10 >= *most * 8 {
            found(format!("{used} of {most} are in use"));
        }
    },
    "handled-gap" |r, found| if let Some((accepted, handled)) = r.accepted.filter(|(a, h)| a > h) {
        found(format!("{} of {accepted}", accepted - handled));
    },
}
