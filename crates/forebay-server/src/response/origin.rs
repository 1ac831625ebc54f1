//! Origin of a response, and the ranges that it allows. Hot path.

use super::stored::Stored;
use std::rc::Rc;

/// Origin of a response.
#[derive(Debug, Default)]
pub enum Origin {
    /// The content of a location.
    #[default]
    Own,
    /// The built-in page of a status.
    ErrorPage,
    /// An upstream, which has evaluated conditions and ranges.
    Upstream,
    /// An upstream, without a head (HTTP/0.9). Over HTTP/1 it leaves as it came.
    Headless,
    /// An upstream, on its way into a cache. Conditions and ranges are evaluated here.
    Cacheable,
    /// An entry of a cache.
    Cache(Rc<dyn Stored>),
}

impl Origin {
    /// Returns `true` if an upstream has sent the response, now or before.
    #[inline]
    pub fn is_proxied(&self) -> bool {
        !matches!(self, Origin::Own | Origin::ErrorPage)
    }

    /// Returns `true` if the response comes through a cache, or on its way into one.
    #[inline]
    pub fn is_cacheable(&self) -> bool {
        matches!(self, Origin::Cacheable | Origin::Cache(_))
    }

    /// Returns `true` if an upstream has evaluated the conditions of the request.
    #[inline]
    pub fn is_evaluated(&self) -> bool {
        matches!(self, Origin::Upstream | Origin::Headless)
    }

    /// Returns `true` if an upstream has sent no head.
    #[inline]
    pub fn is_headless(&self) -> bool {
        matches!(self, Origin::Headless)
    }

    /// Returns `true` for the built-in page of a status.
    #[inline]
    pub fn is_error_page(&self) -> bool {
        matches!(self, Origin::ErrorPage)
    }

    /// Returns the entry of a cache, if the response comes from one.
    #[inline]
    pub fn entry(&self) -> Option<&Rc<dyn Stored>> {
        match self {
            Origin::Cache(entry) => Some(entry),
            _ => None,
        }
    }
}

/// Ranges of a response that a request may ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllowedRanges {
    /// None: the response is sent whole.
    #[default]
    None,
    /// One, since the content is still coming.
    One,
    /// Any number.
    Any,
}
