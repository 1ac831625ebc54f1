//! Typed values of directives, and the `settings!` table that binds directives to fields.

use super::scope::{Build, Context, Scope};
use crate::vars::Template;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use std::path::PathBuf;
use std::time::Duration;

/// A field that a directive of the context `C` can fill.
pub trait Setting<C: Context>: Sized + Clone {
    /// Takes one directive. `previous` is what an earlier one at the same level left.
    ///
    /// # Errors
    /// In nginx's words, with the place of the directive.
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error>;
}

/// Refuses a second directive at one level in nginx's words.
pub fn once<T>(previous: &Option<T>, d: &Directive, cx: &Build<'_>) -> Result<(), Error> {
    if previous.is_some() {
        Err(cx.error(d, format!("\"{}\" directive is duplicate", d.name.as_str())))
    } else {
        Ok(())
    }
}

/// The first argument. The grammar table has checked the count.
pub fn first(d: &Directive) -> &[u8] {
    d.args.first().map_or(&[], |w| &w.text)
}

/// A length in bytes; `k` and `m` are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A number of bytes that may exceed memory; `k`, `m` and `g` are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offset(pub u64);

/// A whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number(pub u64);

/// A duration with millisecond resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Msec(pub Duration);

/// A duration in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sec(pub u64);

macro_rules! simple {
    ($ty:ident, $parse:expr) => {
        impl<C: Context> Setting<C> for $ty {
            fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
                once(&previous, d, cx)?;
                let parse: fn(&[u8]) -> Option<$ty> = $parse;
                parse(first(d))
                    .ok_or_else(|| cx.error(d, format!("\"{}\" directive invalid value", d.name.as_str())))
            }
        }
    };
}

simple!(Msec, |b| units::duration_ms(b).map(Msec));
simple!(Sec, |b| units::time_secs(b).map(Sec));
simple!(Size, |b| units::size(b).map(Size));
simple!(Offset, |b| units::offset(b).map(Offset));

impl<C: Context> Setting<C> for Number {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        units::number(first(d)).map(Number).ok_or_else(|| cx.directive_error(d, "invalid number"))
    }
}

impl<C: Context> Setting<C> for bool {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        match first(d) {
            b if b.eq_ignore_ascii_case(b"on") => Ok(true),
            b if b.eq_ignore_ascii_case(b"off") => Ok(false),
            b => Err(cx.error(
                d,
                format!(
                    "invalid value \"{}\" in \"{}\" directive, it must be \"on\" or \"off\"",
                    String::from_utf8_lossy(b),
                    d.name.as_str()
                ),
            )),
        }
    }
}

impl<C: Context> Setting<C> for Vec<u8> {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        Ok(first(d).to_vec())
    }
}

/// A path, made absolute below the prefix.
impl<C: Context> Setting<C> for PathBuf {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        Ok(cx.full_path(first(d)))
    }
}

/// A value with variables.
impl<C: Context> Setting<C> for Option<Template> {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        d.args.first().map(|w| cx.template(d, w)).transpose()
    }
}

/// `number size` as in `output_buffers 2 32k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// How many.
    pub count: u64,
    /// Bytes in each.
    pub size: u64,
}

impl<C: Context> Setting<C> for Buffers {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let invalid = || cx.error(d, format!("\"{}\" directive invalid value", d.name.as_str()));
        let count = units::number(first(d)).filter(|n| *n > 0).ok_or_else(invalid)?;
        let size = d.args.get(1).and_then(|w| units::size(&w.text)).filter(|n| *n > 0).ok_or_else(invalid)?;
        Ok(Buffers { count, size })
    }
}

/// Settings whose value is one of a few words.
#[macro_export]
macro_rules! keyword {
    ($(#[$m:meta])* $vis:vis enum $name:ident { $($(#[$vm:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        $vis enum $name { $($(#[$vm])* $variant,)* }

        impl<C: $crate::config::Context> $crate::config::value::Setting<C> for $name {
            fn take(
                previous: Option<Self>,
                d: &forebay_conf::tree::Directive,
                cx: &mut $crate::config::Scope<'_, C>,
            ) -> Result<Self, forebay_conf::error::Error> {
                $crate::config::value::once(&previous, d, cx)?;
                let word = $crate::config::value::first(d);
                $(if word.eq_ignore_ascii_case($text.as_bytes()) { return Ok($name::$variant); })*
                Err(cx.error(d, format!("invalid value \"{}\"", String::from_utf8_lossy(word))))
            }
        }
    };
}

/// Binds directives to fields: one row a directive. Contexts whose setters fit (http, stream) may share a table.
///
/// Makes `Written` (what one level of the file says, each field an `Option`) and `Settings` (what is in
/// effect, defaults applied). A level inherits what it left unset.
#[macro_export]
macro_rules! settings {
    ($($(#[$doc:meta])* $directive:literal => $field:ident : $ty:ty = $default:expr;)*) => {
        /// What one level of the configuration says.
        #[derive(Clone, Debug, Default)]
        #[allow(missing_docs)]
        pub struct Written { $(pub $field: Option<$ty>,)* }

        /// What is in effect.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)]
        pub struct Settings { $($(#[$doc])* pub $field: $ty,)* }

        impl Written {
            /// Names of the directives bound here.
            pub const DIRECTIVES: &'static [&'static str] = &[$($directive,)*];

            /// Whether a directive of this name is one of this module's.
            pub fn binds(name: &[u8]) -> bool {
                Self::DIRECTIVES.iter().any(|d| d.as_bytes() == name)
            }

            /// Takes a directive; `Ok(false)` if it is not one of this module's.
            pub fn set<C: $crate::config::Context>(
                &mut self,
                d: &forebay_conf::tree::Directive,
                cx: &mut $crate::config::Scope<'_, C>,
            ) -> Result<bool, forebay_conf::error::Error>
            where
                $($ty: $crate::config::value::Setting<C>,)*
            {
                self.set_as(&d.name.text, d, cx)
            }

            /// Takes a directive as if it had this name: that of another family that means the same.
            pub fn set_as<C: $crate::config::Context>(
                &mut self,
                name: &[u8],
                d: &forebay_conf::tree::Directive,
                cx: &mut $crate::config::Scope<'_, C>,
            ) -> Result<bool, forebay_conf::error::Error>
            where
                $($ty: $crate::config::value::Setting<C>,)*
            {
                $(if name == $directive.as_bytes() {
                    self.$field = Some(<$ty as $crate::config::value::Setting<C>>::take(self.$field.take(), d, cx)?);
                    return Ok(true);
                })*
                let _ = (name, d, cx);
                Ok(false)
            }

            /// Takes over what this level left unset.
            pub fn inherit(&mut self, parent: &Written) {
                $(if self.$field.is_none() { self.$field = parent.$field.clone(); })*
                let _ = parent;
            }

            /// Applies the defaults.
            pub fn resolve(&self) -> Settings {
                Settings { $($field: self.$field.clone().unwrap_or_else(|| $default),)* }
            }
        }
    };
}
