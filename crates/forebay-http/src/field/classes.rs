//! Classes of fields: one table for all lists of names that the server treats alike. Hot path.
//!
//! Several classes are about fields that end with a connection, and they differ on purpose:
//!
//! | | connection-specific | dropped from requests | from responses | from interim responses |
//! | --- | --- | --- | --- | --- |
//! | `Connection`, `Keep-Alive`, `Transfer-Encoding` | yes | yes | yes | yes |
//! | `Upgrade` | yes | yes | no: the client may have asked for it | yes |
//! | `Proxy-Connection` | yes | yes | no | yes |
//! | `HTTP2-Settings` | yes | yes | no: it is a field of requests | no |
//! | `TE` | no: a request may have `trailers` over HTTP/2 | yes | no: it is a field of requests | yes |
//! | `Content-Length` | no | yes, a length of our own is written | yes, likewise | yes |
//! | `Host`, `Expect` | no | yes, `Host` is set by the configuration | no | no |
//!
//! Responses over HTTP/2 have no connection-specific field and no `TE`, wherever these come from: an upstream, the
//! configuration, or trailers. Fields that `Connection` names pass, as in nginx.
//!
//! `Trailer`, `Proxy-Authenticate` and `Proxy-Authorization` pass, although RFC 9110, section 7.6.1, lets a proxy drop them.

use super::Name;
use std::ops::BitOr;

/// A set of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classes(u16);

impl Classes {
    /// Fields about one HTTP/1 connection, which are malformed in HTTP/2 (RFC 9113, section 8.2.2).
    pub const CONNECTION: Classes = Classes(1);
    /// Fields that set where content ends (RFC 9112, section 6). Only the sender of a message can write them.
    pub const FRAMING: Classes = Classes(1 << 1);
    /// Fields of a client's request that are not forwarded to an upstream (RFC 9110, section 7.6.1).
    pub const REQUEST_HOP: Classes = Classes(1 << 2);
    /// Fields of an upstream's response that are not forwarded to the client.
    pub const RESPONSE_HOP: Classes = Classes(1 << 3);
    /// Fields of an upstream's interim response that are not forwarded to the client.
    pub const INTERIM_HOP: Classes = Classes(1 << 4);
    /// Fields by which an upstream directs this proxy, private to the two (nginx: `X-Accel-*`).
    pub const PRIVATE: Classes = Classes(1 << 5);
    /// Fields that a server writes about itself and that this one replaces by its own.
    pub const OF_SERVER: Classes = Classes(1 << 6);
    /// Fields of a request that ask for less than a whole response.
    pub const CONDITIONAL: Classes = Classes(1 << 7);
    /// Fields that a request may have once. `Host` is not among them: its error has another text.
    pub const ONCE_IN_REQUEST: Classes = Classes(1 << 8);
    /// Fields that speak for the whole response: of repeated ones the first is forwarded (nginx since 1.23).
    pub const ONCE_IN_RESPONSE: Classes = Classes(1 << 9);
    /// Fields of a response that stay when its `X-Accel-Redirect` hands the request to another location.
    pub const KEPT_ON_REDIRECT: Classes = Classes(1 << 10);
    /// Fields that make a response over HTTP/2 malformed: the connection-specific ones, and `TE`, which only requests may
    /// have (RFC 9113, section 8.2.2).
    pub const UNFIT_FOR_HTTP2: Classes = Classes(1 << 11);

    const NONE: Classes = Classes(0);

    const fn and(self, other: Classes) -> Classes {
        Classes(self.0 | other.0)
    }

    /// Returns `true` if one of `classes` is in this set.
    #[inline]
    pub const fn has(self, classes: Classes) -> bool {
        self.0 & classes.0 != 0
    }
}

impl BitOr for Classes {
    type Output = Classes;
    #[inline]
    fn bitor(self, other: Classes) -> Classes {
        self.and(other)
    }
}

/// Fields of one connection wherever they are.
const HOP: Classes = Classes::REQUEST_HOP.and(Classes::RESPONSE_HOP).and(Classes::INTERIM_HOP);

/// Fields that no message over HTTP/2 may have.
const SPECIFIC: Classes = Classes::CONNECTION.and(Classes::UNFIT_FOR_HTTP2);

const CONDITION: Classes = Classes::CONDITIONAL.and(Classes::ONCE_IN_REQUEST);

const ROWS: &[(Name, Classes)] = &[
    (Name::Connection, HOP.and(SPECIFIC)),
    (Name::KeepAlive, HOP.and(SPECIFIC)),
    (Name::TransferEncoding, HOP.and(SPECIFIC).and(Classes::FRAMING).and(Classes::ONCE_IN_REQUEST)),
    (Name::ContentLength, HOP.and(Classes::FRAMING).and(Classes::ONCE_IN_REQUEST)),
    (Name::Upgrade, SPECIFIC.and(Classes::REQUEST_HOP).and(Classes::INTERIM_HOP)),
    (Name::ProxyConnection, SPECIFIC.and(Classes::REQUEST_HOP).and(Classes::INTERIM_HOP)),
    (Name::Http2Settings, SPECIFIC.and(Classes::REQUEST_HOP)),
    (Name::Te, Classes::REQUEST_HOP.and(Classes::INTERIM_HOP).and(Classes::UNFIT_FOR_HTTP2)),
    (Name::Host, Classes::REQUEST_HOP),
    (Name::Expect, Classes::REQUEST_HOP.and(Classes::ONCE_IN_REQUEST)),
    (Name::XAccelRedirect, Classes::PRIVATE),
    (Name::XAccelExpires, Classes::PRIVATE),
    (Name::XAccelLimitRate, Classes::PRIVATE),
    (Name::XAccelBuffering, Classes::PRIVATE),
    (Name::XAccelCharset, Classes::PRIVATE),
    (Name::Date, Classes::OF_SERVER.and(Classes::ONCE_IN_RESPONSE)),
    (Name::Server, Classes::OF_SERVER.and(Classes::ONCE_IN_RESPONSE)),
    (Name::IfMatch, CONDITION),
    (Name::IfNoneMatch, CONDITION),
    (Name::IfModifiedSince, CONDITION),
    (Name::IfUnmodifiedSince, CONDITION),
    (Name::IfRange, CONDITION),
    (Name::Range, Classes::CONDITIONAL),
    (Name::Authorization, Classes::ONCE_IN_REQUEST),
    (Name::ProxyAuthorization, Classes::ONCE_IN_REQUEST),
    (Name::ContentRange, Classes::ONCE_IN_REQUEST),
    (Name::ContentType, Classes::ONCE_IN_RESPONSE),
    (Name::Etag, Classes::ONCE_IN_RESPONSE),
    (Name::LastModified, Classes::ONCE_IN_RESPONSE),
    (Name::Location, Classes::ONCE_IN_RESPONSE),
    (Name::Refresh, Classes::ONCE_IN_RESPONSE),
    (Name::Expires, Classes::ONCE_IN_RESPONSE.and(Classes::KEPT_ON_REDIRECT)),
    (Name::SetCookie, Classes::KEPT_ON_REDIRECT),
    (Name::ContentDisposition, Classes::KEPT_ON_REDIRECT),
    (Name::CacheControl, Classes::KEPT_ON_REDIRECT),
    (Name::AcceptRanges, Classes::KEPT_ON_REDIRECT),
];

/// Classes by number of the name; `Other` has none.
static TABLE: [Classes; Name::COUNT + 1] = {
    let mut table = [Classes::NONE; Name::COUNT + 1];
    let mut i = 0;
    while i < ROWS.len() {
        let (name, classes) = ROWS[i];
        assert!(table[name as usize].0 == 0, "a name has two rows");
        table[name as usize] = classes;
        i += 1;
    }
    table
};

impl Name {
    /// Returns the classes of the name.
    #[inline]
    pub fn classes(self) -> Classes {
        TABLE[self as usize]
    }

    /// Returns `true` if the name is in one of these classes.
    #[inline]
    pub fn is(self, classes: Classes) -> bool {
        self.classes().has(classes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(classes: Classes) -> Vec<&'static str> {
        Name::ALL.into_iter().filter(|name| name.is(classes)).map(Name::as_str).collect()
    }

    #[test]
    fn hop_by_hop_fields_are_known() {
        let specific = [
            "connection",
            "transfer-encoding",
            "upgrade",
            "keep-alive",
            "proxy-connection",
            "http2-settings",
        ];
        assert_eq!(names(Classes::CONNECTION), specific);
        let more = names(Classes::UNFIT_FOR_HTTP2);
        assert!(specific.iter().all(|name| more.contains(name)) && more.len() == 7 && more.contains(&"te"));
        assert_eq!(
            names(Classes::REQUEST_HOP),
            [
                "host",
                "connection",
                "content-length",
                "transfer-encoding",
                "expect",
                "te",
                "upgrade",
                "keep-alive",
                "proxy-connection",
                "http2-settings"
            ]
        );
        let hop = ["connection", "content-length", "transfer-encoding", "keep-alive"];
        assert_eq!(names(Classes::RESPONSE_HOP), hop);
        assert_eq!(
            names(Classes::INTERIM_HOP),
            [
                "connection",
                "content-length",
                "transfer-encoding",
                "te",
                "upgrade",
                "keep-alive",
                "proxy-connection"
            ]
        );
        assert!(!Name::Other.is(Classes(u16::MAX)));
    }

    #[test]
    fn sets_are_joined() {
        let hidden = Classes::PRIVATE | Classes::OF_SERVER;
        assert!(Name::Date.is(hidden) && Name::XAccelCharset.is(hidden) && !Name::Etag.is(hidden));
    }
}
