//! `access_log`, `log_format`, `open_log_file_cache` (nginx: ngx_stream_log_module).

use crate::access_log::Format;
use crate::config::Scope;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::access_log::{self, AccessLogs, LogFileCache};

forebay_core::settings! {
    /// `access_log`, empty for `off`. Unlike HTTP, stream has no default log.
    "access_log" => access_log: AccessLogs = AccessLogs::default();
    /// `open_log_file_cache`.
    "open_log_file_cache" => open_log_file_cache: LogFileCache = LogFileCache(None);
}

/// Reads `log_format`.
///
/// # Errors
/// In nginx's words.
pub(crate) fn format(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let log = access_log::format(d, cx)?;
    // Register the format even if it is invalid, so that directives that name it cause no second error.
    cx.tables.log_formats.push(Format { name: log.name, escape: log.escape, template: log.template });
    log.fault.map_or(Ok(()), Err)
}
