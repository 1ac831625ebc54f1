//! Secrets, decoded.

use super::kinds::Metadata;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Secret of `v1`.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Written")]
pub struct Secret {
    /// Name, annotations and so on.
    pub metadata: Metadata,
    /// Keys and values, decoded. Values that are no base64 are absent.
    pub data: BTreeMap<String, Arc<[u8]>>,
    /// Keys whose values no server can use, with the reasons. They are not in [`Secret::data`].
    pub refused: BTreeMap<&'static str, Arc<str>>,
}

/// A Secret as it is written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Written {
    metadata: Metadata,
    data: Option<BTreeMap<String, Option<String>>>,
    string_data: Option<BTreeMap<String, String>>,
}

impl From<Written> for Secret {
    fn from(written: Written) -> Secret {
        let decode = |(key, text): (String, Option<String>)| {
            // Line breaks come from YAML blocks.
            let text: String = text.unwrap_or_default().split_ascii_whitespace().collect();
            Some((key, STANDARD.decode(text).ok()?.into()))
        };
        let mut data: BTreeMap<String, Arc<[u8]>> =
            written.data.unwrap_or_default().into_iter().filter_map(decode).collect();
        // The API server does the same when it takes a manifest.
        let plain = written.string_data.unwrap_or_default();
        data.extend(plain.into_iter().map(|(key, text)| (key, text.into_bytes().into())));
        Secret { metadata: written.metadata, data, refused: BTreeMap::new() }
    }
}

/// Shows names of keys, never values.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&String> = self.data.keys().collect();
        f.debug_struct("Secret").field("metadata", &self.metadata).field("keys", &keys).finish()
    }
}
