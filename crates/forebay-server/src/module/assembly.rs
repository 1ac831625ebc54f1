//! Part of modules in making a configuration from the levels that were read.

use crate::config::http::{Location, LocationBuild, LocationId};
use crate::config::issued::{CertificateSource, Issuing};
use crate::config::parts::Parts;
use crate::config::{HttpTables, Scope};
use crate::module::Content;
use crate::module::levels::{LocationSettings, LocationWritten, Sharing};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Span};
use forebay_core::tls::loader::Loader;
use forebay_core::upstream::group::Group;

/// Functions of a module that check and complete levels. Functions that a module does not need come from [`ConfigHooks::NONE`].
#[derive(Clone, Copy)]
pub struct ConfigHooks {
    /// Checks a directive that has just been read against the other directives of its level.
    ///
    /// # Errors
    /// In nginx's words.
    pub check_directive: Option<CheckDirective>,
    /// Checks the directives of a level that is not the http level, after it has inherited.
    ///
    /// # Errors
    /// In nginx's words.
    pub check_level: Option<CheckLevel>,
    /// Checks settings in effect.
    ///
    /// # Errors
    /// In nginx's words.
    pub check_settings: Option<CheckSettings>,
    /// Takes what directives have left in [`LocationBuild::parts`].
    ///
    /// # Errors
    /// In nginx's words.
    pub place: Option<Place>,
    /// Changes the settings in effect at a location.
    pub settle: Option<fn(&mut Location, &LocationWritten, &mut Settling<'_, '_>)>,
    /// Begins to choose certificates for servers that name none. At most one module has it.
    pub certificates: Option<fn(Issuing<'_, '_>) -> Box<dyn CertificateSource>>,
    /// Makes what a location needs for TLS to upstreams.
    pub load_tls: Option<fn(&mut Location, &mut LoadingTls<'_, '_>) -> Loaded>,
    /// Returns `true` if a location uses the default of `proxy_temp_path`.
    pub default_proxy_temp: Option<fn(&Location) -> bool>,
    /// Directives of `upstream` blocks.
    pub upstream_directives: &'static [(&'static str, UpstreamDirective)],
    /// Completes what the module has added to an upstream group.
    pub complete_group: Option<fn(&mut Parts, &HttpTables, &mut Vec<Error>)>,
    /// Hands tables on to the configuration.
    pub finish: Option<fn(&mut HttpTables, &mut Parts)>,
    /// Returns errors for names that something refers to and nothing defines. The second parameter is the end of the http block.
    pub undefined: Option<Undefined>,
}

impl ConfigHooks {
    /// No functions.
    pub const NONE: ConfigHooks = ConfigHooks {
        check_directive: None,
        check_level: None,
        check_settings: None,
        place: None,
        settle: None,
        certificates: None,
        load_tls: None,
        default_proxy_temp: None,
        upstream_directives: &[],
        complete_group: None,
        finish: None,
        undefined: None,
    };
}

/// Check of a directive of a level that has just been read.
pub type CheckDirective = fn(&Directive, &LocationBuild, &Scope<'_>) -> Result<(), Error>;
/// Check of the directives of a level.
pub type CheckLevel = fn(&LocationWritten) -> Result<(), String>;
/// Check of settings in effect.
pub type CheckSettings = fn(&InEffectAt<'_>) -> Result<(), String>;
/// Function that takes what directives have left in a level.
pub type Place = fn(&mut Placing<'_, '_>) -> Result<(), Error>;
/// Search for names that nothing defines.
pub type Undefined = fn(&HttpTables, Option<Span>) -> Vec<Error>;
/// Reader of a directive of an `upstream` block.
pub type UpstreamDirective = fn(&Directive, &mut Group, &mut Parts, &mut Scope<'_>) -> Result<(), Error>;

/// Settings in effect at a level, for checks.
pub struct InEffectAt<'a> {
    /// The settings.
    pub settings: &'a LocationSettings,
    /// The level is the http level.
    pub is_http: bool,
    /// Tables of the http level.
    pub tables: &'a HttpTables,
}

/// A level that has settings and a place.
pub struct Placing<'a, 'f> {
    /// Values that directives have left.
    pub parts: &'a mut Parts,
    /// Content handler.
    pub content: Option<&'a Content>,
    /// Settings in effect.
    pub settings: &'a LocationSettings,
    /// Number of the server.
    pub server: usize,
    /// Number of the location there.
    pub location: LocationId,
    /// Shared state of the configuration.
    pub cx: &'a mut Scope<'f>,
}

/// State of the configuration while settings are changed.
pub struct Settling<'a, 'f> {
    /// Values that modules keep from one location to the next.
    pub memory: &'a mut Parts,
    /// Settings that levels share.
    pub sharing: &'a mut Sharing,
    /// Shared state of the configuration.
    pub cx: &'a mut Scope<'f>,
}

/// State of the configuration while TLS configurations are made.
pub struct LoadingTls<'a, 'f> {
    /// Values that modules keep from one location to the next.
    pub memory: &'a mut Parts,
    /// Loader of certificates.
    pub loader: &'a mut Loader,
    /// Shared state of the configuration.
    pub cx: &'a mut Scope<'f>,
}

/// Effect of making TLS configurations on what the next configuration may take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// The location may be taken over.
    Repeatable,
    /// The location may depend on files that another one has read.
    Unrepeatable,
}

impl Loaded {
    /// Returns the effect of both.
    pub fn and(self, other: Loaded) -> Loaded {
        if self == Loaded::Repeatable { other } else { self }
    }
}
