//! Lists and watches of one kind of objects (Kubernetes API concepts: efficient detection of changes).

use crate::api::{Api, Error};
use futures_util::TryStreamExt;
use kube::core::WatchEvent;
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;
use tokio::sync::mpsc::Sender;

/// Pauses after a failure: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Objects in one answer of a list.
const PAGE: u32 = 500;
/// Time after which the API server ends a watch, seconds. The next one goes on from there.
const WATCH_SECONDS: u32 = 290;
/// Time without any event after which a connection counts as broken. Bookmarks come about every minute.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 30);

/// Kind of objects to watch.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Path of its group and version: `/api/v1` or `/apis/GROUP/VERSION`.
    pub group: String,
    /// Plural name.
    pub plural: &'static str,
    /// Namespace; `None` for all, and for kinds without namespaces.
    pub namespace: Option<String>,
    /// The cluster may lack this kind, or the account may lack the right to read it.
    pub optional: bool,
    /// `fieldSelector` and `labelSelector` as parts of a query, each with a `&` before it; empty for all objects.
    pub selector: String,
}

impl Resource {
    fn path(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{}/namespaces/{namespace}/{}", self.group, self.plural),
            None => format!("{}/{}", self.group, self.plural),
        }
    }
}

/// Change of the objects of a kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A list begins: the first one, or a new one after the history was lost.
    Listing,
    /// Objects of the list.
    Page(Vec<Value>),
    /// The list is complete: objects that were not in it are gone.
    Listed,
    /// An object is new, or has changed.
    Set(Value),
    /// An object is gone.
    Gone(Value),
    /// The API server does not have this kind. It is asked again later.
    Unknown,
}

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    #[serde(default)]
    items: Vec<Value>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    rest: Option<String>,
}

/// Way in which a watch has ended.
enum Ended {
    /// It goes on from this version.
    At(String),
    /// The history up to the version is gone (410): everything has to be listed again.
    Expired,
}

/// Sends the objects of a kind and all their changes with `kind`, until nobody receives them. Failures are repeated with growing
/// pauses; `log` gets the first of a row.
pub async fn watch<K: Clone>(
    api: Api,
    kind: K,
    resource: Resource,
    changes: Sender<(K, Change)>,
    log: impl Fn(&str),
) {
    let send = async |change| changes.send((kind.clone(), change)).await.is_ok();
    let mut pause = FIRST_PAUSE;
    let mut failing = false;
    loop {
        let outcome = list_and_watch(&api, &resource, &send, &mut || {
            (pause, failing) = (FIRST_PAUSE, false);
        })
        .await;
        let error = match outcome {
            // The history is gone: list at once.
            Ok(true) => continue,
            Ok(false) => return,
            Err(error) => error,
        };
        let forbidden = error.is_forbidden() && (resource.optional || !is_known(&api, &resource).await);
        if forbidden && !std::mem::replace(&mut failing, true) {
            log(&format!("{} are not read: {error}", resource.plural));
        }
        if error.is_not_found() || forbidden {
            if !send(Change::Unknown).await {
                return;
            }
            pause = LONGEST_PAUSE;
        } else if !std::mem::replace(&mut failing, true) {
            log(&format!("watching {} failed, trying again: {error}", resource.plural));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Returns `true` unless the API server lacks a kind. It judges the account before it looks whether there is such a kind, so that an
/// account without rules for it gets 403 in both cases.
async fn is_known(api: &Api, resource: &Resource) -> bool {
    match api.get::<Value>(&resource.group).await {
        Ok(group) => {
            let kinds = group.get("resources").and_then(Value::as_array);
            kinds.into_iter().flatten().any(|kind| kind.get("name") == Some(&resource.plural.into()))
        }
        Err(error) => !error.is_not_found(),
    }
}

/// Lists the objects and follows their changes. Returns `true` if the history is gone, and `false` if nobody receives them.
async fn list_and_watch(
    api: &Api,
    resource: &Resource,
    send: &impl AsyncFn(Change) -> bool,
    healthy: &mut dyn FnMut(),
) -> Result<bool, Error> {
    let Some(mut version) = list(api, resource, send).await? else { return Ok(false) };
    healthy();
    loop {
        match follow(api, resource, version, send).await? {
            None => return Ok(false),
            Some(Ended::Expired) => return Ok(true),
            Some(Ended::At(at)) => version = at,
        }
        healthy();
    }
}

/// Sends all objects, page by page: objects as they are read take many times the memory of what is kept of them. Returns the version of
/// the list; `None` if nobody receives it.
pub(crate) async fn list(
    api: &Api,
    resource: &Resource,
    send: &impl AsyncFn(Change) -> bool,
) -> Result<Option<String>, Error> {
    let mut rest = None::<String>;
    if !send(Change::Listing).await {
        return Ok(None);
    }
    loop {
        let mut path = format!("{}?limit={PAGE}{}", resource.path(), resource.selector);
        if let Some(rest) = &rest {
            path.push_str(&format!("&continue={rest}"));
        }
        let page: List = api.get(&path).await?;
        if !send(Change::Page(page.items)).await {
            return Ok(None);
        }
        rest = page.metadata.rest.filter(|rest| !rest.is_empty());
        if rest.is_none() {
            return Ok(send(Change::Listed).await.then_some(page.metadata.resource_version));
        }
    }
}

/// Follows the changes since a version. Returns `None` if nobody receives them.
async fn follow(
    api: &Api,
    resource: &Resource,
    mut version: String,
    send: &impl AsyncFn(Change) -> bool,
) -> Result<Option<Ended>, Error> {
    let path = format!(
        "{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}{}",
        resource.path(),
        resource.selector
    );
    let stream = match api.events(&path).await {
        Err(error) if error.is_expired() => return Ok(Some(Ended::Expired)),
        other => other?,
    };
    futures_util::pin_mut!(stream);
    loop {
        let event = tokio::time::timeout(SILENCE, stream.try_next()).await.map_err(|_| Error::silent())?;
        let change = match event? {
            None => return Ok(Some(Ended::At(version))),
            Some(WatchEvent::Bookmark(bookmark)) => {
                version = bookmark.metadata.resource_version;
                continue;
            }
            Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                version = version_of(&object);
                Change::Set(object)
            }
            Some(WatchEvent::Deleted(object)) => {
                version = version_of(&object);
                Change::Gone(object)
            }
            Some(WatchEvent::Error(status)) if status.code == 410 => return Ok(Some(Ended::Expired)),
            Some(WatchEvent::Error(status)) => return Err(Error::of_status(&status)),
        };
        if !send(change).await {
            return Ok(None);
        }
    }
}

/// Returns the version that an object has in the API server.
fn version_of(object: &Value) -> String {
    let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    version.unwrap_or_default().to_owned()
}
