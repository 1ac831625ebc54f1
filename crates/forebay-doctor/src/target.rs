//! The server that is advised, and the servers that a rule holds for.

use forebay_conf::version::NginxVersion;
use std::fmt;

/// Server that runs the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// This one.
    #[default]
    Forebay,
    /// nginx, with its version where that is known.
    Nginx(Option<NginxVersion>),
}

impl Target {
    /// Reads `forebay`, `nginx` or `nginx:1.26.3`.
    ///
    /// # Errors
    /// What is wrong about the text.
    pub fn parse(text: &str) -> Result<Target, String> {
        let (name, version) = text.split_once(':').map_or((text, None), |(n, v)| (n, Some(v)));
        match (name, version) {
            ("forebay", None) => Ok(Target::Forebay),
            ("nginx", None) => Ok(Target::Nginx(None)),
            ("nginx", Some(version)) => NginxVersion::parse(version)
                .map(|v| Target::Nginx(Some(v)))
                .ok_or_else(|| format!("\"{version}\" is no version of nginx, as 1.28.0")),
            _ => Err(format!("\"{text}\" is neither forebay nor nginx nor nginx:VERSION")),
        }
    }

    /// Returns `true` if connections to upstreams are kept by default, as nginx does since 1.29.7. A version that is not known may
    /// be older.
    pub(crate) fn keeps_upstream_connections(self) -> bool {
        match self {
            Target::Forebay => true,
            Target::Nginx(version) => version.is_some_and(|v| v >= NginxVersion([1, 29, 7])),
        }
    }

    /// Returns the version of nginx.
    pub fn nginx(self) -> Option<NginxVersion> {
        match self {
            Target::Forebay => None,
            Target::Nginx(version) => version,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Forebay => f.write_str("Forebay"),
            Target::Nginx(None) => f.write_str("nginx"),
            Target::Nginx(Some(version)) => write!(f, "nginx {version}"),
        }
    }
}

/// Servers that a rule holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holds {
    /// It holds for Forebay.
    pub forebay: bool,
    /// Versions of nginx that it holds for.
    pub nginx: Option<Range>,
}

/// Range of versions: from the first on, and before the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    since: Option<NginxVersion>,
    before: Option<NginxVersion>,
}

impl Holds {
    /// Reads `both`, or a list of `forebay`, `nginx`, `nginx >=1.25.1`, `nginx <1.29.7`.
    pub(crate) fn parse(text: &str) -> Option<Holds> {
        if text == "both" {
            return Some(Holds { forebay: true, nginx: Some(Range::default()) });
        }
        let mut holds = Holds { forebay: false, nginx: None };
        for part in text.split(", ") {
            match part.split_once(' ').unwrap_or((part, "")) {
                ("forebay", "") => holds.forebay = true,
                ("nginx", range) => holds.nginx = Some(Range::parse(range)?),
                _ => return None,
            }
        }
        Some(holds)
    }

    /// Returns `true` if the rule holds for a server. A version that is not known may be any.
    pub fn includes(self, target: Target) -> bool {
        match target {
            Target::Forebay => self.forebay,
            Target::Nginx(version) => {
                self.nginx.is_some_and(|range| version.is_none_or(|v| range.includes(v)))
            }
        }
    }

    /// Returns `true` if it holds for both servers.
    pub fn is_general(self) -> bool {
        self.forebay && self.nginx.is_some()
    }
}

impl Range {
    fn parse(text: &str) -> Option<Range> {
        let mut range = Range::default();
        for bound in text.split_whitespace() {
            if let Some(version) = bound.strip_prefix(">=") {
                range.since = Some(NginxVersion::parse(version)?);
            } else {
                range.before = Some(NginxVersion::parse(bound.strip_prefix('<')?)?);
            }
        }
        Some(range)
    }

    fn includes(self, version: NginxVersion) -> bool {
        self.since.is_none_or(|first| version >= first) && self.before.is_none_or(|end| version < end)
    }
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nginx = self.nginx.map(|range| {
            let since = range.since.map(|v| format!(" since {v}"));
            let before = range.before.map(|v| format!(" before {v}"));
            format!("nginx{}{}", since.unwrap_or_default(), before.unwrap_or_default())
        });
        let names: Vec<String> =
            nginx.into_iter().chain(self.forebay.then(|| "Forebay".to_owned())).collect();
        f.write_str(&names.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read() {
        let old = Target::Nginx(Some(NginxVersion([1, 18, 0])));
        assert_eq!(Target::parse("nginx:1.18.0"), Ok(old));
        assert_eq!(Target::parse("nginx"), Ok(Target::Nginx(None)));
        assert_eq!(Target::parse("forebay"), Ok(Target::Forebay));
        for wrong in ["", "apache", "nginx:", "nginx:1", "forebay:1.0.0"] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn versions_decide() {
        let holds = Holds::parse("nginx <1.29.7").expect("a range");
        let at = |text| Target::parse(text).expect("a target");
        assert!(holds.includes(at("nginx:1.29.6")) && holds.includes(at("nginx")));
        assert!(!holds.includes(at("nginx:1.29.7")) && !holds.includes(at("forebay")));
        let since = Holds::parse("nginx >=1.25.1, forebay").expect("a list");
        assert!(since.includes(Target::Forebay) && !since.includes(at("nginx:1.25.0")));
        assert_eq!(since.to_string(), "nginx since 1.25.1 and Forebay");
        assert_eq!(Holds::parse("apache"), None);
    }
}
