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

/// Whether there is somebody who takes changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    There,
    Gone,
}

/// Way in which a watch has ended.
enum Ended {
    /// The API server has ended it, and it goes on from this version.
    At(String),
    /// The history up to the version is gone (410): everything has to be listed again.
    Expired,
    /// The receiver of changes is gone.
    NoReceiver,
}

/// Pause before the next attempt, and whether the last one has failed.
struct Retry {
    pause: Duration,
    failing: bool,
}

impl Retry {
    fn new() -> Retry {
        Retry { pause: FIRST_PAUSE, failing: false }
    }

    /// Returns `true` for the first failure of a row.
    fn is_first(&mut self) -> bool {
        !std::mem::replace(&mut self.failing, true)
    }

    async fn wait(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
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
    let send = async |change| match changes.send((kind.clone(), change)).await {
        Ok(()) => Receiver::There,
        Err(_) => Receiver::Gone,
    };
    let mut retry = Retry::new();
    loop {
        let error = match list_and_watch(&api, &resource, &send, &mut retry).await {
            Ok(()) => return,
            Err(error) => error,
        };
        let forbidden = error.is_forbidden() && (resource.optional || !is_known(&api, &resource).await);
        if forbidden && retry.is_first() {
            log(&format!("{} are not read: {error}", resource.plural));
        }
        if error.is_not_found() || forbidden {
            if send(Change::Unknown).await == Receiver::Gone {
                return;
            }
            retry.pause = LONGEST_PAUSE;
        } else if retry.is_first() {
            log(&format!("watching {} failed, trying again: {error}", resource.plural));
        }
        retry.wait().await;
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

/// Lists the objects and follows their changes, until nobody receives them. Resets `retry` whenever that succeeds.
async fn list_and_watch(
    api: &Api,
    resource: &Resource,
    send: &impl AsyncFn(Change) -> Receiver,
    retry: &mut Retry,
) -> Result<(), Error> {
    while let Some(mut version) = list(api, resource, send).await? {
        *retry = Retry::new();
        loop {
            match follow(api, resource, version, send).await? {
                Ended::NoReceiver => return Ok(()),
                Ended::Expired => break,
                Ended::At(at) => version = at,
            }
            *retry = Retry::new();
        }
    }
    Ok(())
}

/// Sends all objects, page by page: objects as they are read take many times the memory of what is kept of them. Returns the version of
/// the list; `None` if nobody receives it.
pub(crate) async fn list(
    api: &Api,
    resource: &Resource,
    send: &impl AsyncFn(Change) -> Receiver,
) -> Result<Option<String>, Error> {
    let mut rest = None::<String>;
    if send(Change::Listing).await == Receiver::Gone {
        return Ok(None);
    }
    loop {
        let mut path = format!("{}?limit={PAGE}{}", resource.path(), resource.selector);
        if let Some(rest) = &rest {
            path.push_str(&format!("&continue={rest}"));
        }
        let page: List = api.get(&path).await?;
        if send(Change::Page(page.items)).await == Receiver::Gone {
            return Ok(None);
        }
        rest = page.metadata.rest.filter(|rest| !rest.is_empty());
        if rest.is_none() {
            let receiver = send(Change::Listed).await;
            return Ok((receiver == Receiver::There).then_some(page.metadata.resource_version));
        }
    }
}

/// Follows the changes since a version.
async fn follow(
    api: &Api,
    resource: &Resource,
    mut version: String,
    send: &impl AsyncFn(Change) -> Receiver,
) -> Result<Ended, Error> {
    let path = format!(
        "{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}{}",
        resource.path(),
        resource.selector
    );
    let stream = match api.events(&path).await {
        Err(error) if error.is_expired() => return Ok(Ended::Expired),
        other => other?,
    };
    futures_util::pin_mut!(stream);
    loop {
        let event = tokio::time::timeout(SILENCE, stream.try_next()).await.map_err(|_| Error::silent())?;
        let Some(event) = event? else { return Ok(Ended::At(version)) };
        let change = match event {
            WatchEvent::Error(status) if status.code == 410 => return Ok(Ended::Expired),
            event => change_of(event, &mut version)?,
        };
        if let Some(change) = change
            && send(change).await == Receiver::Gone
        {
            return Ok(Ended::NoReceiver);
        }
    }
}

/// Returns the change that an event is about, and notes its version. `None`: the event is about the version alone.
fn change_of(event: WatchEvent<Value>, version: &mut String) -> Result<Option<Change>, Error> {
    let change = match event {
        WatchEvent::Bookmark(bookmark) => {
            *version = bookmark.metadata.resource_version;
            return Ok(None);
        }
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            *version = version_of(&object);
            Change::Set(object)
        }
        WatchEvent::Deleted(object) => {
            *version = version_of(&object);
            Change::Gone(object)
        }
        WatchEvent::Error(status) => return Err(Error::of_status(&status)),
    };
    Ok(Some(change))
}

/// Returns the version that an object has in the API server.
fn version_of(object: &Value) -> String {
    let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    version.unwrap_or_default().to_owned()
}
