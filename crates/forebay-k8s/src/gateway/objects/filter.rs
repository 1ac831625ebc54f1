//! Filters of rules.

use super::BackendRef;
use serde::{Deserialize, Serialize};

/// Change of requests and answers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Filter {
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `RequestHeaderModifier`.
    pub request_header_modifier: Option<HeaderModifier>,
    /// `ResponseHeaderModifier`.
    pub response_header_modifier: Option<HeaderModifier>,
    /// `RequestRedirect`.
    pub request_redirect: Option<Redirect>,
    /// `URLRewrite`.
    pub url_rewrite: Option<UrlRewrite>,
    /// `RequestMirror`.
    pub request_mirror: Option<RequestMirror>,
    /// `CORS`.
    pub cors: Option<Cors>,
    /// `ExternalAuth`.
    pub external_auth: Option<ExternalAuth>,
}

/// Service that decides on requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExternalAuth {
    /// `HTTP` or `GRPC`.
    pub protocol: String,
    /// The Service.
    pub backend_ref: BackendRef,
    /// Settings for gRPC.
    pub grpc: Option<GrpcAuth>,
    /// Settings for HTTP.
    pub http: Option<HttpAuth>,
    /// Bodies that it gets.
    pub forward_body: Option<ForwardBody>,
}

/// Settings of a service that decides over gRPC.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GrpcAuth {
    /// Fields of requests that it gets; empty: all.
    pub allowed_headers: Vec<String>,
}

/// Settings of a service that decides over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpAuth {
    /// Beginning of the paths that it is asked for.
    pub path: Option<String>,
    /// Fields of requests that it gets beside those that it always does.
    pub allowed_headers: Vec<String>,
    /// Fields of its answers that the backend gets; empty: all.
    pub allowed_response_headers: Vec<String>,
}

/// Bodies that a service gets that decides.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ForwardBody {
    /// Largest one, in bytes; 0: none.
    pub max_size: i64,
}

/// Fields that are set, added and removed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct HeaderModifier {
    /// Fields that take the place of others.
    pub set: Vec<NameValue>,
    /// Fields that are added.
    pub add: Vec<NameValue>,
    /// Names of fields that are removed.
    pub remove: Vec<String>,
}

/// Name and value of a field.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct NameValue {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

/// Redirect.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Redirect {
    /// Scheme.
    pub scheme: Option<String>,
    /// Host.
    pub hostname: Option<String>,
    /// Path.
    pub path: Option<PathModifier>,
    /// Port.
    pub port: Option<u16>,
    /// Status.
    pub status_code: Option<u16>,
}

/// New host and path of requests to a backend.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct UrlRewrite {
    /// Host.
    pub hostname: Option<String>,
    /// Path.
    pub path: Option<PathModifier>,
}

/// New path.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PathModifier {
    /// `ReplaceFullPath` or `ReplacePrefixMatch`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The whole path.
    pub replace_full_path: Option<String>,
    /// In place of the prefix that the match names.
    pub replace_prefix_match: Option<String>,
}

/// Copies of requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RequestMirror {
    /// Service that gets them.
    pub backend_ref: BackendRef,
    /// Share, percent.
    pub percent: Option<u32>,
    /// Share as a fraction.
    pub fraction: Option<Fraction>,
}

/// Fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Fraction {
    /// Numerator.
    pub numerator: u32,
    /// Denominator; 100 if absent.
    pub denominator: Option<u32>,
}

/// Answers to pages of other origins.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Cors {
    /// Origins.
    pub allow_origins: Vec<String>,
    /// Credentials are allowed.
    pub allow_credentials: Option<bool>,
    /// Methods.
    pub allow_methods: Vec<String>,
    /// Fields of requests.
    pub allow_headers: Vec<String>,
    /// Fields of answers.
    pub expose_headers: Vec<String>,
    /// Seconds for which an answer to OPTIONS holds.
    pub max_age: Option<u32>,
}
