//! Variables: names to numbers once, values per request (nginx: variables). Hot path.

use crate::request::{Request, VarError};
use std::collections::HashMap;

/// Number of a variable in one configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VarId(pub u16);

/// Appends a value; `Ok(false)`: the variable has no value for this request.
pub type Getter = fn(&mut Request, &mut Vec<u8>) -> Result<bool, VarError>;
/// As [`Getter`], for families such as `$arg_NAME`; takes what stands after the prefix.
pub type PrefixGetter = fn(&mut Request, &[u8], &mut Vec<u8>) -> Result<bool, VarError>;

/// A built-in variable: a row in its module's file.
#[derive(Clone, Copy)]
pub struct Row {
    /// Name; ends in `*` for a family.
    pub name: &'static str,
    /// How to get it.
    pub get: RowSource,
    /// Whether `set`, `map` and the like may give it another value.
    pub settable: bool,
}

/// Where a value comes from.
#[derive(Clone)]
pub enum Source {
    /// Referred to, not (yet) defined.
    Unknown,
    /// Only what `set` or a named capture stored.
    Stored,
    /// A built-in function.
    Get(Getter),
    /// A built-in family; the text after the prefix.
    Prefix(PrefixGetter, std::sync::Arc<[u8]>),
    /// Computed by a module's table (`map`, `geo`, `split_clients`, ...): cached in the request.
    Computed(std::sync::Arc<dyn Compute>),
    /// Known from nginx, belonging to a feature that is not there: never has a value.
    Absent,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Source::Unknown => "Unknown",
            Source::Stored => "Stored",
            Source::Get(_) => "Get",
            Source::Prefix(..) => "Prefix",
            Source::Computed(_) => "Computed",
            Source::Absent => "Absent",
        })
    }
}

/// As [`Source`], for tables of constants.
#[derive(Clone, Copy)]
pub enum RowSource {
    /// A built-in function.
    Get(Getter),
    /// A family.
    Prefix(PrefixGetter),
}

/// A variable that a module computes from others.
pub trait Compute: Send + Sync {
    /// Appends the value.
    ///
    /// # Errors
    /// When a source variable cannot be evaluated.
    fn compute(&self, req: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError>;
    /// Whether the value may change within a request (nginx: volatile).
    fn volatile(&self) -> bool {
        false
    }
}

/// One variable of a configuration.
#[derive(Clone, Debug)]
pub struct Var {
    /// Name, lower case, without `$`.
    pub name: Box<[u8]>,
    /// Source.
    pub source: Source,
    /// Whether it may be defined anew.
    pub settable: bool,
    /// `set` defines it: using it before that is worth a warning.
    pub by_set: bool,
}

/// The variables of a configuration under construction.
#[derive(Debug, Default)]
pub struct Registry {
    vars: Vec<Var>,
    index: HashMap<Box<[u8]>, VarId>,
}

impl Registry {
    /// Number of a variable that is used somewhere.
    pub fn reference(&mut self, name: &[u8]) -> VarId {
        let name: Box<[u8]> = name.to_ascii_lowercase().into();
        if let Some(id) = self.index.get(&name) {
            return *id;
        }
        let (source, settable) = builtin(&name);
        let id = VarId(self.vars.len().min(usize::from(u16::MAX)) as u16);
        self.index.insert(name.clone(), id);
        self.vars.push(Var { name, source, settable, by_set: false });
        id
    }

    /// Name of a variable, if it is a built-in one that cannot be redefined.
    pub fn name(&self, id: VarId) -> Option<&[u8]> {
        self.vars.get(id.0 as usize).filter(|v| !v.settable).map(|v| &*v.name)
    }

    /// Name of a variable that belongs to a built-in family, though `set` may give it a value.
    pub fn member(&self, id: VarId) -> Option<&[u8]> {
        self.vars.get(usize::from(id.0)).filter(|v| matches!(v.source, Source::Prefix(..))).map(|v| &*v.name)
    }

    /// Defines a variable that is set (`set`, named captures, `auth_request_set`).
    ///
    /// # Errors
    /// `the duplicate "x" variable` for a built-in one that may not change.
    pub fn define_stored(&mut self, name: &[u8]) -> Result<VarId, String> {
        let id = self.reference(name);
        let v = &mut self.vars[id.0 as usize];
        if !v.settable {
            return Err(format!("the duplicate \"{}\" variable", String::from_utf8_lossy(name)));
        }
        if matches!(v.source, Source::Unknown | Source::Absent) {
            v.source = Source::Stored;
        }
        Ok(id)
    }

    /// Notes that `set` defines a variable.
    pub fn note_set(&mut self, id: VarId) {
        if let Some(v) = self.vars.get_mut(usize::from(id.0)) {
            v.by_set = true;
        }
    }

    /// Defines a computed variable (`map`, `geo`, ...). A later definition replaces an earlier one.
    ///
    /// # Errors
    /// As [`Registry::define_stored`].
    pub fn define_computed(&mut self, name: &[u8], c: std::sync::Arc<dyn Compute>) -> Result<VarId, String> {
        let id = self.define_stored(name)?;
        self.vars[id.0 as usize].source = Source::Computed(c);
        Ok(id)
    }

    /// Whether a variable whose name begins so is used.
    pub fn uses_prefix(&self, prefix: &[u8]) -> bool {
        self.vars.iter().any(|v| v.name.starts_with(prefix))
    }

    /// Ends the construction. The second part is an error, `unknown "x" variable`, for each variable that nothing defines.
    pub fn finish(self) -> (Vec<Var>, Vec<String>) {
        let unknown = self.vars.iter().filter(|v| matches!(v.source, Source::Unknown));
        let errors =
            unknown.map(|v| format!("unknown \"{}\" variable", String::from_utf8_lossy(&v.name))).collect();
        (self.vars, errors)
    }
}

pub(crate) fn builtin(name: &[u8]) -> (Source, bool) {
    for row in crate::modules::variables() {
        match row.get {
            RowSource::Get(g) if row.name.as_bytes() == name => return (Source::Get(g), row.settable),
            RowSource::Prefix(g) => {
                let prefix = &row.name[..row.name.len() - 1];
                if name.starts_with(prefix.as_bytes()) {
                    // A member of a family can be set but for those that nginx has by name; where it is not, the family
                    // answers.
                    let settable = !FIXED.contains(&name);
                    return (Source::Prefix(g, name[prefix.len()..].into()), settable);
                }
            }
            RowSource::Get(_) => {}
        }
    }
    if LATER.contains(&&*String::from_utf8_lossy(name))
        || LATER_PREFIXES.iter().any(|p| name.starts_with(p.as_bytes()))
    {
        return (Source::Absent, is_settable_later(name));
    }
    (Source::Unknown, true)
}

/// Members of the family `$http_NAME` that cannot be set.
const FIXED: &[&[u8]] =
    &[b"http_cookie", b"http_referer", b"http_user_agent", b"http_via", b"http_x_forwarded_for"];

/// Whether nginx lets `set` give a value to a variable of a feature that is not there.
fn is_settable_later(name: &[u8]) -> bool {
    name.starts_with(b"ssl_")
        || name.starts_with(b"geoip_")
        || [
            b"ancient_browser".as_slice(),
            b"modern_browser",
            b"msie",
            b"upstream_first_byte_time",
            b"upstream_session_time",
        ]
        .contains(&name)
}

const LATER_PREFIXES: &[&str] = &["ssl_", "jwt_"];

/// Variables of features that are not there yet: a log format may name them, and they print as `-`.
const LATER: &[&str] = &[
    "ancient_browser",
    "connections_active",
    "geoip_area_code",
    "geoip_city",
    "geoip_city_continent_code",
    "geoip_city_country_code",
    "geoip_city_country_code3",
    "geoip_city_country_name",
    "geoip_country_code",
    "geoip_country_code3",
    "geoip_country_name",
    "grpc_internal_trailers",
    "http2",
    "http3",
    "modern_browser",
    "msie",
    "quic_connection",
    "spdy",
    "spdy_request_priority",
    "upstream_first_byte_time",
    "upstream_last_addr",
    "upstream_last_server_name",
    "upstream_queue_time",
    "upstream_server_name",
    "upstream_session_time",
];
