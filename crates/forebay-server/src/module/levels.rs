//! Settings of the modules of the base and of all other modules at the levels of a configuration. Hot path.

use crate::config::Scope;
use crate::module::settings;
use crate::modules::{core, log, rewrite};
use foldhash::fast::RandomState;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::tls::settings as tls;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// Combines the settings of all modules into one set per location. A level shares the settings of a module with the level
/// around it if it sets none of them itself, so servers and locations with few directives take little memory.
macro_rules! modules {
    ($($module:ident,)*) => {
        /// Settings of all modules that one level sets itself.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)]
        pub struct LocationWritten {
            $(pub $module: Arc<$module::Written>,)*
            pub modules: settings::Written,
        }

        /// Settings of all modules that are in effect at a location.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)]
        pub struct LocationSettings {
            $(pub $module: Arc<$module::Settings>,)*
            pub modules: settings::InEffect,
        }

        /// A level without directives.
        static NOTHING: LazyLock<LocationWritten> =
            LazyLock::new(|| LocationWritten { $($module: Arc::default(),)* modules: settings::Written::default() });

        impl Default for LocationWritten {
            fn default() -> LocationWritten {
                NOTHING.clone()
            }
        }

        impl LocationWritten {
            /// Reads a directive. Returns its module, or `None` if no module binds it.
            ///
            /// # Errors
            /// In nginx's words.
            pub fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<Option<Part>, Error> {
                let Some(module) = PARTS.get(d.name.text.as_slice()).copied() else {
                    return Ok(self.modules.set(d, cx)?.map(Part::Other));
                };
                let set = match module {
                    $(Part::$module => Arc::make_mut(&mut self.$module).set(d, cx)?,)*
                    Part::Other(_) => false,
                };
                Ok(set.then_some(module))
            }
            /// Replaces the directives of a module, whose words are `text`, by the equal directives of another level.
            pub fn share(&mut self, module: Part, text: crate::module::sharing::Text, sharing: &mut Sharing) {
                // The values of `root` and `alias` depend on the location, so equal words need not mean equal settings.
                if module == Part::core && self.core.root.is_some() {
                    return;
                }
                match module {
                    $(Part::$module => sharing.$module.share(&mut self.$module, text),)*
                    Part::Other(place) => self.modules.share(place, text, &mut sharing.modules),
                }
            }
            /// Copies the settings that this level left unset from `parent`.
            pub fn inherit(&mut self, parent: &LocationWritten, sharing: &mut Sharing) {
                $(if Arc::ptr_eq(&self.$module, &NOTHING.$module) {
                    self.$module = parent.$module.clone();
                } else if !Arc::ptr_eq(&self.$module, &parent.$module) {
                    sharing.$module.inherit(&mut self.$module, &parent.$module, |own, outer| {
                        let mut own = (**own).clone();
                        own.inherit(outer);
                        Arc::new(own)
                    });
                })*
                self.modules.inherit(&parent.modules, &mut sharing.modules);
            }
            /// Applies the defaults. `parent` has the directives of the level around this one, and the settings in effect there.
            pub fn resolve(
                &self,
                parent: Option<(&LocationWritten, &LocationSettings)>,
                sharing: &mut Sharing,
            ) -> LocationSettings {
                LocationSettings { $($module: match parent {
                    Some((w, s)) if Arc::ptr_eq(&self.$module, &w.$module) => s.$module.clone(),
                    _ => sharing.$module.resolve(&self.$module, |written| Arc::new(written.resolve())),
                },)* modules: self.modules.resolve(
                    parent.map(|(written, settings)| (&written.modules, &settings.modules)),
                    &mut sharing.modules,
                ) }
            }
        }

        /// The settings of a module.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, missing_docs)]
        pub enum Part { $($module,)* Other(usize) }

        /// Settings by the names of their directives.
        static PARTS: LazyLock<HashMap<&'static [u8], Part, RandomState>> = LazyLock::new(|| {
            let module = |name: &[u8]| {
                $(if $module::Written::binds(name) { return Some(Part::$module); })*
                None
            };
            let names = forebay_conf::grammar::names().map(str::as_bytes);
            names.filter_map(|name| Some((name, module(name)?))).collect()
        });

        /// Settings that the levels of a configuration share.
        #[derive(Debug, Default)]
        pub struct Sharing {
            $($module: crate::module::sharing::Shared<$module::Written, Arc<$module::Settings>>,)*
            /// Of all other modules.
            pub modules: settings::Sharing,
        }

        /// Names of all directives bound by settings at location level.
        #[cfg(any(test, feature = "testing"))]
        pub const BOUND: &[&[&str]] = &[$($module::Written::DIRECTIVES,)*];
    };
}

modules! {
    core, log, rewrite, tls,
}
