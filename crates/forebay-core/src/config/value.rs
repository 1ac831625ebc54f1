//! Typed values of directives, and the `settings!` table that binds directives to fields.

use super::scope::{Build, Context, Scope};
use crate::vars::Template;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use std::path::PathBuf;
use std::time::Duration;

/// Value of a directive in the context `C`.
pub trait Setting<C: Context>: Sized + Clone {
    /// Reads a directive. `previous` is the value of an earlier directive of the same name at the same level.
    ///
    /// # Errors
    /// In nginx's words, with the place of the directive.
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error>;
}

/// Value of a directive that has none where no level sets it. `Option` of it is a [`Setting`].
pub trait OptionalSetting<C: Context>: Sized + Clone {
    /// Reads a directive. `previous` is the value of an earlier directive of the same name at the same level.
    ///
    /// # Errors
    /// In nginx's words, with the place of the directive.
    fn read(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error>;
}

impl<C: Context, T: OptionalSetting<C>> Setting<C> for Option<T> {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        T::read(previous.flatten(), d, cx).map(Some)
    }
}

/// Refuses a second directive at one level in nginx's words.
pub fn once<T>(previous: &Option<T>, d: &Directive, cx: &Build<'_>) -> Result<(), Error> {
    if previous.is_some() {
        Err(cx.error(d, format!("\"{}\" directive is duplicate", d.name.as_str())))
    } else {
        Ok(())
    }
}

/// Returns the first argument. The grammar table has checked that there is one.
pub fn first(d: &Directive) -> &[u8] {
    d.args.first().map_or(&[], |w| &w.text)
}

/// Splits a parameter into its name and the value after `=`, if it has one.
pub fn split_parameter(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(b'=', text) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

/// Length in bytes, with the suffixes `k` and `m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Number of bytes that may exceed memory, with the suffixes `k`, `m` and `g`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offset(pub u64);

/// Whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number(pub u64);

/// Duration with millisecond resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Msec(pub Duration);

/// Duration in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sec(pub u64);

/// Implements [`Setting`] for a type that a function parses from one word.
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

/// Path, made absolute below the prefix.
impl<C: Context> Setting<C> for PathBuf {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        Ok(cx.full_path(first(d)))
    }
}

impl<C: Context> OptionalSetting<C> for Size {
    fn read(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        Size::take(previous, d, cx)
    }
}

impl<C: Context> OptionalSetting<C> for Number {
    fn read(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        Number::take(previous, d, cx)
    }
}

impl<C: Context> OptionalSetting<C> for Template {
    fn read(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        match d.args.first() {
            Some(w) => cx.template(d, w),
            None => Err(cx.directive_error(d, "has no value")),
        }
    }
}

/// `number size` as in `output_buffers 2 32k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Number of buffers.
    pub count: u64,
    /// Size of each, bytes.
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

/// Defines an enum whose values are written as words, and reads it.
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

/// Binds directives to fields, one row a directive. Several contexts (http, stream) may share a table if its types are settings
/// in each of them.
///
/// Makes two structs. `Written` has the directives of one level of the file, each an `Option`. `Settings` has the values in
/// effect. A level inherits the directives that it does not have; then defaults fill the rest.
#[macro_export]
macro_rules! settings {
    ($($(#[$doc:meta])* $directive:literal => $field:ident : $ty:ty = $default:expr;)*) => {
        /// Directives of one level of the configuration; `None`: the level does not have it.
        #[derive(Clone, Debug, Default)]
        #[allow(missing_docs)]
        pub struct Written { $(pub $field: Option<$ty>,)* }

        /// Values in effect.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)]
        pub struct Settings { $($(#[$doc])* pub $field: $ty,)* }

        impl Written {
            /// Names of the directives bound here.
            pub const DIRECTIVES: &'static [&'static str] = &[$($directive,)*];

            /// Returns `true` if a directive of this name is one of this module's.
            pub fn binds(name: &[u8]) -> bool {
                Self::DIRECTIVES.iter().any(|d| d.as_bytes() == name)
            }

            /// Reads a directive. Returns `false` if it is not one of this module's.
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

            /// Reads a directive as if it had another name: `fastcgi_buffering` is read as `proxy_buffering`.
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
                // An empty table would leave them unused.
                let _ = (name, d, cx);
                Ok(false)
            }

            /// Takes the directives that this level does not have from the level around it.
            pub fn inherit(&mut self, parent: &Written) {
                $(if self.$field.is_none() { self.$field = parent.$field.clone(); })*
                let _ = parent;
            }

            /// Returns the values in effect, with defaults for the directives that no level has.
            pub fn resolve(&self) -> Settings {
                Settings { $($field: self.$field.clone().unwrap_or_else(|| $default),)* }
            }
        }
    };
}
