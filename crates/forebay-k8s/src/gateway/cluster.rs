//! What a translation of the Gateway API reads: objects, and which of them may refer to which.

use super::objects::{AllowedNamespaces, GROUP, GatewayObjects, ReferenceGrant};
use crate::judge::Judge;
use crate::objects::{Key, Objects};
use crate::taken::Taken;

/// What a translation of the Gateway API needs to know.
#[derive(Clone, Copy)]
pub(crate) struct Cluster<'a> {
    /// Services, Secrets, Namespaces.
    pub objects: &'a Objects,
    /// Objects of the Gateway API.
    pub gateway: &'a GatewayObjects,
    /// `spec.controllerName` of the GatewayClasses that are ours.
    pub controller: &'a str,
    /// Judge of certificates and authorities.
    pub judge: &'a Judge,
    /// Names of groups and zones that the operator's directives define.
    pub taken: &'a Taken,
}

/// Object that refers to another one, in the words of a ReferenceGrant.
#[derive(Clone, Copy)]
pub(crate) struct Referrer<'a> {
    /// Kind. Its group is that of the Gateway API.
    pub kind: &'a str,
    /// Namespace.
    pub namespace: &'a str,
}

impl Cluster<'_> {
    /// Returns `true` if an object may refer to one of a kind of the core group: both are in one namespace, or a ReferenceGrant
    /// allows it.
    pub(crate) fn is_granted(&self, from: Referrer<'_>, kind: &str, target: &Key) -> bool {
        if from.namespace == target.namespace {
            return true;
        }
        let here =
            |key: &Key, grant: &ReferenceGrant| key.namespace == target.namespace && grant.unread.is_empty();
        self.gateway.grants.iter().filter(|(key, grant)| here(key, grant)).any(|(_, grant)| {
            grant
                .spec
                .from
                .iter()
                .any(|f| f.group == GROUP && f.kind == from.kind && f.namespace == from.namespace)
                && grant.spec.to.iter().any(|t| {
                    t.group.is_empty() && t.kind == kind && t.name.as_ref().is_none_or(|n| *n == target.name)
                })
        })
    }

    /// Returns `true` if objects of a namespace may attach to something in `own`.
    pub(super) fn allows(
        &self,
        allowed: Option<&AllowedNamespaces>,
        own: &str,
        namespace: &str,
        default: &str,
    ) -> bool {
        match allowed.and_then(|a| a.from.as_deref()).unwrap_or(default) {
            "All" => true,
            "Same" => namespace == own,
            "Selector" => {
                let Some(selector) = allowed.map(|a| &a.selector) else { return false };
                let labels = self.objects.namespace(namespace).map(|n| n.object.metadata.labels.clone());
                let mut labels = labels.unwrap_or_default();
                // The API server sets this label; manifests without it mean the same.
                labels.insert("kubernetes.io/metadata.name".into(), namespace.to_owned());
                selector.selects(&labels)
            }
            _ => false,
        }
    }
}
