//! ReferenceGrants.

use crate::objects::Metadata;
use serde::{Deserialize, Serialize};

/// A ReferenceGrant.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ReferenceGrant {
    /// Metadata.
    pub metadata: Metadata,
    /// Fields of the specification that are not read. They may say less than the others: such a grant allows nothing.
    #[serde(skip)]
    pub unread: Vec<String>,
    /// Specification.
    #[serde(default)]
    pub spec: GrantSpec,
}

/// Specification of a ReferenceGrant.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct GrantSpec {
    /// Objects with references.
    pub from: Vec<GrantFrom>,
    /// Objects in the namespace of the grant.
    pub to: Vec<GrantTo>,
}

/// Kind of objects with references.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct GrantFrom {
    /// Group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
}

/// Kind of objects that are referred to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct GrantTo {
    /// Group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name; `None`: all.
    pub name: Option<String>,
}
