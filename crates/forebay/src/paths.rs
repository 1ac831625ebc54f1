//! Default paths: Debian's layout, or below the prefix when one is given (`-p`).

use std::path::PathBuf;

/// Default locations, absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Paths {
    /// Ends with a slash.
    pub prefix: PathBuf,
    /// Configuration file.
    pub conf: PathBuf,
    /// Error log.
    pub error_log: PathBuf,
    /// Access log, below the prefix unless absolute.
    pub access_log: String,
    /// Pid file.
    pub pid: PathBuf,
}

/// Prefix of relative paths.
pub(crate) const PREFIX: &str = "/usr/share/nginx/";
/// Configuration file.
pub(crate) const CONF: &str = forebay_conf::files::NGINX_CONF;
/// Error log.
pub(crate) const ERROR_LOG: &str = "/var/log/nginx/error.log";
/// Access log.
pub(crate) const HTTP_LOG: &str = "/var/log/nginx/access.log";
/// Pid file.
pub(crate) const PID: &str = "/run/nginx.pid";
/// Lock file; accepted, never used.
pub(crate) const LOCK: &str = "/var/lock/nginx.lock";
/// Directory of the temporary directories.
pub(crate) const TEMP: &str = "/var/lib/nginx";
/// User of the worker process when `user` is not given.
pub(crate) const USER: &str = "nobody";

impl Paths {
    /// Returns the defaults, below the prefix if one is given.
    pub(crate) fn new(prefix: Option<&str>) -> Paths {
        let Some(prefix) = prefix else {
            return Paths {
                prefix: PREFIX.into(),
                conf: forebay_conf::files::default_configuration(),
                error_log: ERROR_LOG.into(),
                access_log: HTTP_LOG.into(),
                pid: PID.into(),
            };
        };
        let mut text = prefix.to_owned();
        if !text.ends_with('/') {
            text.push('/');
        }
        // The worker may change its directory, so that relative paths would mean other files then.
        let prefix = if text.starts_with('/') {
            PathBuf::from(text)
        } else {
            std::env::current_dir().unwrap_or_else(|_| "/".into()).join(text)
        };
        Paths {
            conf: prefix.join("conf/nginx.conf"),
            error_log: prefix.join("logs/error.log"),
            access_log: "logs/access.log".into(),
            pid: prefix.join("logs/nginx.pid"),
            prefix,
        }
    }
}

/// Returns the text of `-V` behind `configure arguments:`. Tools look for paths and modules here: it names those that work.
pub(crate) fn configure_arguments() -> String {
    let mut text = format!(
        "--prefix={} --conf-path={CONF} --error-log-path={ERROR_LOG} --http-log-path={HTTP_LOG} --pid-path={PID} \
         --lock-path={LOCK} --user={USER}",
        PREFIX.trim_end_matches('/')
    );
    for (name, directory) in [
        ("client-body", "body"),
        ("proxy", "proxy"),
        ("fastcgi", "fastcgi"),
        ("uwsgi", "uwsgi"),
        ("scgi", "scgi"),
    ] {
        text.push_str(&format!(" --http-{name}-temp-path={TEMP}/{directory}"));
    }
    for module in [
        "v2_module",
        "v3_module",
        "addition_module",
        "auth_request_module",
        "dav_module",
        "realip_module",
        "gunzip_module",
        "gzip_static_module",
        "random_index_module",
        "secure_link_module",
        "slice_module",
        "ssl_module",
        "stub_status_module",
        "sub_module",
        "tunnel_module",
    ] {
        text.push_str(&format!(" --with-http_{module}"));
    }
    text.push_str(" --with-stream --with-stream_ssl_module --with-stream_realip_module --with-stream_ssl_preread_module");
    text.push_str(" --with-threads");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_moves_everything() {
        let paths = Paths::new(Some("/srv/x"));
        assert_eq!(paths.conf, PathBuf::from("/srv/x/conf/nginx.conf"));
        assert_eq!(paths.pid, PathBuf::from("/srv/x/logs/nginx.pid"));
        assert_eq!(Paths::new(None).conf, PathBuf::from(CONF));
        assert!(Paths::new(Some("x")).prefix.is_absolute());
    }
}
