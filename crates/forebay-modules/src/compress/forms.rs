//! Compressed forms of files and cached responses. Each is made once, on the blocking pool. It is kept and dropped
//! together with its content. Hot path.

use super::encoder;
use crate::brotli;
use crate::gzip;
use crate::zstd;
use bytes::Bytes;
use forebay_server::file_cache::OpenFile;
use forebay_server::module::levels::LocationSettings;
use forebay_server::request::Request;
use forebay_server::response::Part;
use forebay_server::response::coding::{Coding, Form, FormKey};
use forebay_server::response::made::Derived;
use forebay_server::response::stored::{Content, Stored};
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Notify;

/// Longest content whose forms are kept, bytes. Longer ones are compressed as they are sent.
const LONGEST: u64 = 1024 * 1024;

/// Largest number of forms of one content.
const MOST: usize = 8;

/// Returns the configured parameters for a stream.
pub fn for_stream(coding: Coding, s: &LocationSettings) -> FormKey {
    let (level, window) = match coding {
        Coding::Gzip => (gzip::SETTINGS.of(s).level.0, gzip::SETTINGS.of(s).window.0),
        Coding::Br => (brotli::SETTINGS.of(s).level.0, brotli::SETTINGS.of(s).window.0),
        Coding::Zstd => (zstd::SETTINGS.of(s).level.0, 0),
    };
    FormKey { coding, level, window }
}

/// Returns parameters for a form, which is made once and sent often: at least a good level, whose cost hardly matters.
pub fn for_form(coding: Coding, s: &LocationSettings) -> FormKey {
    let least = match coding {
        Coding::Gzip | Coding::Br => 6,
        Coding::Zstd => 9,
    };
    let key = for_stream(coding, s);
    FormKey { level: key.level.max(least), ..key }
}

/// The forms of one content.
#[derive(Debug, Default)]
pub struct Forms {
    ready: RefCell<Vec<Arc<Form>>>,
    /// Forms under way, and the signals for requests that wait for them.
    making: RefCell<Vec<(FormKey, Arc<Notify>)>>,
}

impl Forms {
    /// Returns a finished form.
    pub fn get(&self, key: FormKey) -> Option<Arc<Form>> {
        self.ready.borrow().iter().find(|f| f.key == key).cloned()
    }

    fn busy(&self, key: FormKey) -> Option<Arc<Notify>> {
        self.making.borrow().iter().find(|(k, _)| *k == key).map(|(_, n)| n.clone())
    }
}

impl Derived for Forms {
    fn size(&self) -> u64 {
        self.ready.borrow().iter().map(|f| f.bytes.len() as u64).sum()
    }
}

/// Guard of the request that makes a form. Dropping it wakes the requests that wait.
struct Maker<'f>(&'f Forms, FormKey);

impl<'f> Maker<'f> {
    fn new(forms: &'f Forms, key: FormKey) -> Maker<'f> {
        forms.making.borrow_mut().push((key, Arc::new(Notify::new())));
        Maker(forms, key)
    }
}

impl Drop for Maker<'_> {
    fn drop(&mut self) {
        self.0.making.borrow_mut().retain(|(k, n)| {
            if *k == self.1 {
                n.notify_waiters();
            }
            *k != self.1
        });
    }
}

/// Content of forms.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A file.
    File(Rc<OpenFile>),
    /// A cached response.
    Entry(Rc<dyn Stored>),
}

impl Subject {
    /// Returns the forms of the content.
    pub fn forms(&self) -> Rc<Forms> {
        match self {
            Subject::File(f) => f.made.of(),
            Subject::Entry(e) => e.made().of(),
        }
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Subject::File(f) => f.size,
            Subject::Entry(e) => e.content().len(),
        }
    }

    /// Returns the content, or the place to read it from.
    fn source(&self) -> Option<Plain> {
        match self {
            Subject::File(f) => Plain::of_file(f, 0),
            Subject::Entry(e) => match e.content() {
                Content::Memory(b) => Some(Plain::Memory(b.clone())),
                Content::File(f, start) => Plain::of_file(f, *start),
            },
        }
    }
}

enum Plain {
    Memory(Bytes),
    File { fd: OwnedFd, start: u64, len: usize, state: forebay_server::file_cache::Identity },
}

impl Plain {
    /// Takes the content of a file from an offset on.
    fn of_file(file: &OpenFile, start: u64) -> Option<Plain> {
        if let Some(b) = &file.content {
            return Some(Plain::Memory(b.slice((start as usize).min(b.len())..)));
        }
        let len = usize::try_from(file.size.checked_sub(start)?).ok()?;
        Some(Plain::File { fd: file.fd.try_clone().ok()?, start, len, state: file.state() })
    }
}

impl Plain {
    /// Compresses the content. May block. Returns `None` if it cannot be read or the file changed meanwhile.
    fn encode(self, key: FormKey) -> Option<Vec<u8>> {
        match self {
            Plain::Memory(b) => encoder::whole(key, &b),
            Plain::File { fd, start, len, state } => {
                use std::os::unix::fs::FileExt;
                let file = std::fs::File::from(fd);
                let mut text = vec![0; len];
                file.read_exact_at(&mut text, start).ok()?;
                // A form of old and new bytes would be sent to all clients for as long as the file stays in
                // the cache.
                if !state.still(&file) {
                    return None;
                }
                encoder::whole(key, &text)
            }
        }
    }
}

/// Returns the content of a response's body if it is a whole file or cached response, and small enough.
pub fn subject(req: &Request, len: Option<u64>) -> Option<Subject> {
    let r = &req.resp;
    // Another body filter changes the content for this response, so a kept form of the file would be wrong.
    if r.source.is_some() || !r.filters.body.is_empty() || len.is_none_or(|n| n == 0 || n > LONGEST) {
        return None;
    }
    let [part] = r.body.as_slice() else { return None };
    if let Some(e) = r.origin.entry() {
        // A range or a slice of an entry is not its content, of which alone forms are kept.
        let own = e.content().len();
        return (Some(own) == len && part.len() == own).then(|| Subject::Entry(e.clone()));
    }
    match part {
        // A form lives as long as its file in the cache. A file that is not kept would lose the form after
        // this response.
        Part::File { file, start: 0, end } if *end == file.size && file.kept.get() => {
            Some(Subject::File(file.clone()))
        }
        _ => None,
    }
}

/// Makes a form, or waits for the request that is making it. Returns `None` if that fails.
pub async fn make(req: &mut Request, subject: &Subject, key: FormKey) -> Option<Arc<Form>> {
    let forms = &*subject.forms();
    // The request that makes the form may fail or lose its client. After two of them this one tries on its
    // own, or is compressed as it is sent.
    for _ in 0..2 {
        if let Some(form) = forms.get(key) {
            return Some(form);
        }
        let Some(other) = forms.busy(key) else { break };
        // No wake-up can be missed: nothing else runs on this thread between the check and the wait.
        other.notified().await;
    }
    if let Some(form) = forms.get(key) {
        return Some(form);
    }
    // Locations may ask for different levels of the same file, and the number of such forms needs an end.
    if forms.busy(key).is_some() || forms.ready.borrow().len() >= MOST {
        return None;
    }
    let source = subject.source()?;
    let maker = Maker::new(forms, key);
    // The blocking pool does it, as compressing a megabyte at a good level would hold up all connections of
    // the thread.
    let made = tokio::task::spawn_blocking(move || source.encode(key)).await.ok().flatten()?;
    let form = Arc::new(Form { key, bytes: made.into() });
    let grown = form.bytes.len() as u64;
    forms.ready.borrow_mut().push(form.clone());
    // This wakes the requests that wait, which have to find the form in the list by then.
    drop(maker);
    // The caches limit the memory of contents together with their forms, and may drop entries now.
    match subject {
        Subject::File(f) => req.thread.files.borrow_mut().grew(f, grown),
        Subject::Entry(e) => e.grew(&req.thread, grown),
    }
    Some(form)
}
