//! Reasons for which there is no certificate.

use forebay_net::blame::Blamed;
use std::time::Duration;

/// Consequence of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Another attempt may succeed.
    Temporary,
    /// This machine could not ask the authority, for want of descriptors or memory.
    Own,
    /// The authority limits the rate of requests.
    RateLimited,
    /// The authority did not find the proof for a name.
    Unproven,
    /// Another attempt would fail, too, until the configuration changes.
    Final,
}

/// Failure of a request or of an order.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// Text for the log.
    pub(crate) text: String,
    /// Consequence.
    pub(crate) class: Class,
    /// Last part of the URN of the authority's problem (RFC 8555, section 6.7), or empty.
    pub(crate) problem: String,
    /// Time after which the authority allows another request.
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    /// Creates a failure after which another attempt may succeed.
    pub(crate) fn temporary(text: impl Into<String>) -> Failure {
        Failure { text: text.into(), class: Class::Temporary, problem: String::new(), retry_after: None }
    }

    /// Creates a failure of which the authority knows nothing if this machine is at fault, otherwise a temporary one.
    pub(crate) fn blamed(text: Blamed<String>) -> Failure {
        let class = if text.is_own() { Class::Own } else { Class::Temporary };
        Failure { class, ..Failure::temporary(text.into_inner()) }
    }

    /// Creates a failure that only another configuration can end.
    pub(crate) fn last(text: impl Into<String>) -> Failure {
        Failure { class: Class::Final, ..Failure::temporary(text) }
    }

    /// Creates the failure of a name whose proof the authority did not find.
    pub(crate) fn unproven(text: impl Into<String>) -> Failure {
        Failure { class: Class::Unproven, ..Failure::temporary(text) }
    }

    /// Adds what was being done.
    pub(crate) fn during(self, what: &str) -> Failure {
        Failure { text: format!("{what}: {}", self.text), ..self }
    }
}

/// Problems that other requests of the same kind would have, too.
const FINAL: [&str; 10] = [
    "externalAccountRequired",
    "invalidContact",
    "unsupportedContact",
    "unsupportedIdentifier",
    "rejectedIdentifier",
    "badCSR",
    "badPublicKey",
    "badSignatureAlgorithm",
    "invalidProfile",
    "userActionRequired",
];

/// Returns what follows from a problem.
pub(crate) fn class_of(problem: &str) -> Class {
    match problem {
        "rateLimited" => Class::RateLimited,
        "unauthorized" | "connection" | "dns" | "tls" | "incorrectResponse" | "caa" => Class::Unproven,
        p if FINAL.contains(&p) => Class::Final,
        _ => Class::Temporary,
    }
}
