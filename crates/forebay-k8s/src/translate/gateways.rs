//! The servers of the Gateway API, made anew only when something that they depend on has changed.

use super::{Changes, groups};
use crate::gateway::{GatewayPart, Gateways, StatusUpdate};
use crate::ingress::Globals;
use crate::objects::{Kind, Objects};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Path of the file with the servers of all Gateways.
pub(super) const FILE: &str = "gateways.conf";

/// User of the groups of all Gateways. No host has such a name.
const USER: &str = " gateways";

/// The last translation of the Gateway API.
#[derive(Default)]
pub(super) struct Kept {
    gateways: Gateways,
    part: GatewayPart,
    /// Version of the objects of the Gateway API.
    seen: Option<u64>,
    text: Arc<[u8]>,
}

impl Kept {
    /// Begins anew with the addresses of an earlier translation.
    pub(super) fn after(former: Kept) -> Kept {
        Kept { gateways: former.gateways, text: former.text, ..Kept::default() }
    }

    /// Translates the objects if any of them has changed, or an object that they refer to.
    pub(super) fn update(
        &mut self,
        objects: &Objects,
        globals: &Globals,
        changes: &Changes,
        groups: &mut groups::Parts,
    ) {
        let only_endpoints = match changes {
            Changes::All => false,
            Changes::Some(list) => {
                list.iter().all(|(kind, _)| matches!(kind, Kind::EndpointSlice | Kind::Ingress))
            }
        };
        let version = objects.gateway.version;
        if only_endpoints && self.seen == Some(version) {
            return;
        }
        self.seen = Some(version);
        self.part = self.gateways.translate(objects, &objects.gateway, &globals.options.gateway);
        groups.replace_specs(&USER.into(), &self.part.specs, objects, globals);
        // Words were checked when they were made; what cannot be printed is left out as a whole.
        let text = forebay_conf::print(&self.part.http).unwrap_or_default();
        if *self.text != *text {
            self.text = text.into();
        }
    }

    /// Returns the file with the servers; `None` if there are none.
    pub(super) fn text(&self) -> Option<Arc<[u8]>> {
        (!self.text.is_empty()).then(|| self.text.clone())
    }

    /// Returns the files that the servers name, each once.
    pub(super) fn files(&self) -> impl Iterator<Item = (Arc<Path>, Arc<[u8]>)> {
        let files: BTreeMap<&str, &Arc<[u8]>> =
            self.part.files.iter().map(|f| (f.path.as_str(), &f.bytes)).collect();
        files.into_iter().map(|(path, bytes)| (Path::new(path).into(), bytes.clone()))
    }

    pub(super) fn statuses(&self) -> Vec<StatusUpdate> {
        self.part.statuses.clone()
    }
}
