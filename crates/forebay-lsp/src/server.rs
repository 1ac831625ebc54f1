//! The session with a client: documents, requests and their answers.
//!
//! A change of a text is answered twice. The parser's mistakes are sent at once, with what the last check found, at the lines where it
//! is now. A thread (`checking.rs`) looks for the rest, the mistakes of all stages and the findings of doctor, when the client is quiet.

use crate::checking::{Checked, Checker};
use crate::cursor::Cursor;
use crate::diagnostics::{self, ByFile, Change};
use crate::project::{Check, Documents, Project, Projects, guessed};
use crate::symbols::{self, Kind, Occurrence};
use crate::{completion, outline, text, words};
use forebay_conf::grammar::Contexts;
use forebay_conf::tree::FileId;
use lsp_server::{Connection, ErrorCode, Message, Notification, Request, Response};
use lsp_types::{
    CodeActionParams, CodeActionProviderCapability, CompletionItem, CompletionOptions, CompletionParams,
    Diagnostic, DidChangeTextDocumentParams, DidCloseTextDocumentParams, DidOpenTextDocumentParams,
    DocumentFormattingParams, DocumentSymbol, DocumentSymbolParams, GotoDefinitionParams, Hover,
    HoverContents, HoverParams, HoverProviderCapability, Location, MarkupContent, MarkupKind, OneOf,
    PublishDiagnosticsParams, ReferenceParams, RenameOptions, RenameParams, ServerCapabilities,
    TextDocumentPositionParams, TextDocumentSyncCapability, TextDocumentSyncKind, TextEdit, Uri,
    WorkDoneProgressOptions, WorkspaceEdit,
};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;

/// Largest document, bytes.
const LARGEST: usize = 16 << 20;

/// Serves a client until it ends the session.
///
/// # Errors
/// The connection breaks, or the client breaks the protocol.
pub(crate) fn serve(connection: &Connection, check: Check) -> Result<(), String> {
    let capabilities = serde_json::to_value(capabilities()).map_err(|e| e.to_string())?;
    let given = connection.initialize(capabilities).map_err(|e| e.to_string())?;
    let configured =
        given.pointer("/initializationOptions/configuration").and_then(Value::as_str).map(PathBuf::from);
    let receiver = connection.receiver.clone();
    let (sender, events) = std::sync::mpsc::channel();
    let checked = sender.clone();
    let checker = Checker::start(check, move |found| checked.send(Event::Checked(found)).is_ok());
    let mut session = Session {
        connection,
        checker,
        configured,
        documents: Documents::new(),
        projects: Projects::default(),
        published: BTreeSet::new(),
        kept: ByFile::new(),
        version: 0,
        stale: false,
    };
    // The library's own channel holds nothing, so that it never shows whether more is waiting.
    std::thread::spawn(move || {
        let pass = |message| sender.send(Event::Message(message)).map_err(drop);
        let passed = receiver.into_iter().try_for_each(pass);
        passed.and_then(|()| sender.send(Event::Gone).map_err(drop))
    });
    let gone = || "the client has gone away without ending the session".to_owned();
    let mut ending = false;
    loop {
        let event = match events.try_recv() {
            Ok(event) => event,
            // While more is waiting, diagnostics would be about a text that is gone.
            Err(TryRecvError::Empty) if session.stale => {
                session.publish()?;
                continue;
            }
            Err(TryRecvError::Empty) => events.recv().map_err(|_| gone())?,
            Err(TryRecvError::Disconnected) => return Err(gone()),
        };
        let message = match event {
            Event::Message(message) => message,
            Event::Checked(found) => {
                session.checked(found)?;
                continue;
            }
            Event::Gone => return Err(gone()),
        };
        match message {
            Message::Request(request) if request.method == "shutdown" => {
                ending = true;
                session.reply(Response::new_ok(request.id, ()))?;
            }
            Message::Request(request) => session.request(request)?,
            Message::Notification(notification) if notification.method == "exit" => {
                return if ending { Ok(()) } else { Err("the client ended without \"shutdown\"".to_owned()) };
            }
            Message::Notification(notification) => session.notification(notification),
            Message::Response(_) => {}
        }
    }
}

fn capabilities() -> ServerCapabilities {
    ServerCapabilities {
        text_document_sync: Some(TextDocumentSyncCapability::Kind(TextDocumentSyncKind::INCREMENTAL)),
        completion_provider: Some(CompletionOptions {
            trigger_characters: Some(["$", "@", "/"].map(str::to_owned).to_vec()),
            resolve_provider: Some(true),
            ..CompletionOptions::default()
        }),
        hover_provider: Some(HoverProviderCapability::Simple(true)),
        definition_provider: Some(OneOf::Left(true)),
        references_provider: Some(OneOf::Left(true)),
        rename_provider: Some(OneOf::Right(RenameOptions {
            prepare_provider: Some(true),
            work_done_progress_options: WorkDoneProgressOptions::default(),
        })),
        document_formatting_provider: Some(OneOf::Left(true)),
        document_symbol_provider: Some(OneOf::Left(true)),
        code_action_provider: Some(CodeActionProviderCapability::Simple(true)),
        ..ServerCapabilities::default()
    }
}

/// What a session waits for.
enum Event {
    /// The client says something.
    Message(Message),
    /// A check has ended.
    Checked(Checked),
    /// The client says nothing more.
    Gone,
}

struct Session<'c> {
    connection: &'c Connection,
    checker: Checker,
    /// Main file that the client names.
    configured: Option<PathBuf>,
    documents: Documents,
    projects: Projects,
    /// Files that have diagnostics, which have to be taken back.
    published: BTreeSet<PathBuf>,
    /// What the last check found besides the parser's mistakes, at its places in the texts of now.
    kept: ByFile,
    /// Number of the last change.
    version: u64,
    /// Documents have changed since the last diagnostics.
    stale: bool,
}

/// A place in an open document.
struct Spot {
    text: Arc<[u8]>,
    offset: usize,
    /// The configuration that the document belongs to, and the document's number in it.
    project: Option<(Rc<Project>, FileId)>,
}

impl Spot {
    fn context(&self) -> Contexts {
        match &self.project {
            Some((project, file)) => project.context(*file),
            None => guessed(&self.text),
        }
    }

    fn names(&self) -> &[Occurrence] {
        self.project.as_ref().map_or(&[], |(project, _)| project.names())
    }

    fn cursor(&self) -> Cursor {
        Cursor::new(&self.text, self.offset, self.context())
    }

    /// Returns the name at the place, and all that are the same.
    fn same(&self) -> Option<(&Project, &Occurrence, Vec<&Occurrence>)> {
        let (project, file) = self.project.as_ref()?;
        let names = project.names();
        let own = symbols::at(names, *file, self.offset)?;
        Some((project, own, names.iter().filter(|n| n.is_same(own)).collect()))
    }
}

impl Session<'_> {
    fn notification(&mut self, notification: Notification) {
        let params = notification.params;
        let (uri, text) = match notification.method.as_str() {
            "textDocument/didOpen" => match serde_json::from_value::<DidOpenTextDocumentParams>(params) {
                Ok(opened) => (opened.text_document.uri, Some(opened.text_document.text)),
                Err(_) => return,
            },
            "textDocument/didChange" => match serde_json::from_value::<DidChangeTextDocumentParams>(params) {
                Ok(changed) => return self.change(changed),
                Err(_) => return,
            },
            "textDocument/didClose" => match serde_json::from_value::<DidCloseTextDocumentParams>(params) {
                Ok(closed) => (closed.text_document.uri, None),
                Err(_) => return,
            },
            "textDocument/didSave" | "workspace/didChangeWatchedFiles" => {
                return self.note_change();
            }
            _ => return,
        };
        if let Some(path) = text::path(&uri) {
            self.replace(path, text.map(String::into_bytes));
        }
    }

    fn change(&mut self, changed: DidChangeTextDocumentParams) {
        let Some(path) = text::path(&changed.text_document.uri) else { return };
        // `None`: a text that is too long, or was never opened. A part of it says nothing without the rest.
        let mut text = self.documents.get(&path).map(|text| text.to_vec());
        for change in changed.content_changes {
            match (change.range, &mut text) {
                (Some(range), Some(text)) => {
                    let start = text::offset(text, range.start);
                    let end = text::offset(text, range.end).max(start);
                    text.splice(start..end, change.text.into_bytes());
                }
                (Some(_), None) => {}
                (None, text) => *text = Some(change.text.into_bytes()),
            }
        }
        self.replace(path, text);
    }

    /// Takes the text of a document, or that of the disk from now on.
    fn replace(&mut self, path: PathBuf, text: Option<Vec<u8>>) {
        let text: Option<Arc<[u8]>> = text.filter(|text| text.len() <= LARGEST).map(Into::into);
        if let (Some(old), Some(new)) = (self.documents.get(&path), &text)
            && let Some(kept) = self.kept.get_mut(&path)
        {
            let change = Change::between(old, new);
            kept.retain_mut(|diagnostic| change.moves(diagnostic));
        }
        match text {
            Some(text) => drop(self.documents.insert(path, text)),
            None => drop(self.documents.remove(&path)),
        }
        self.note_change();
    }

    fn note_change(&mut self) {
        self.projects.clear();
        self.version = self.version.saturating_add(1);
        self.stale = true;
    }

    fn project(&self, document: &Path) -> Option<Rc<Project>> {
        self.projects.of(document, self.configured.as_deref(), &self.documents)
    }

    /// Sends the parser's mistakes in all configurations that open documents belong to, and has them checked.
    fn publish(&mut self) -> Result<(), String> {
        self.stale = false;
        let mut all = ByFile::new();
        let mut mains = BTreeSet::new();
        for path in self.documents.keys() {
            match self.project(path) {
                Some(project) if mains.insert(project.main.clone()) => {
                    all.extend(diagnostics::of(&project, &project.errors, &[]));
                }
                Some(_) => {}
                None => drop(all.insert(path.clone(), self.alone(path))),
            }
        }
        self.checker.check(self.version, mains, self.documents.clone());
        for (path, list) in &mut all {
            list.extend(self.kept.get(path).into_iter().flatten().cloned());
        }
        self.send_all(all)
    }

    /// Sends what a check has found, if it is about the texts of now.
    fn checked(&mut self, checked: Checked) -> Result<(), String> {
        if checked.version != self.version {
            return Ok(());
        }
        self.kept = checked.kept();
        let mut all = checked.found;
        for path in self.documents.keys().filter(|path| self.project(path).is_none()) {
            all.insert(path.clone(), self.alone(path));
        }
        self.send_all(all)
    }

    fn send_all(&mut self, all: ByFile) -> Result<(), String> {
        let before = std::mem::take(&mut self.published);
        for path in before.iter().filter(|path| !all.contains_key(*path)) {
            self.send(path, Vec::new())?;
        }
        for (path, list) in all {
            let is_shown = !list.is_empty();
            if is_shown || before.contains(&path) || self.documents.contains_key(&path) {
                self.send(&path, list)?;
            }
            if is_shown {
                self.published.insert(path);
            }
        }
        Ok(())
    }

    /// Returns the mistakes of a document that belongs to no configuration.
    fn alone(&self, path: &Path) -> Vec<Diagnostic> {
        let Some(text) = self.documents.get(path) else { return Vec::new() };
        let parsed = forebay_conf::parse::body(text, guessed(text));
        let errors = parsed.errors.iter().filter_map(|e| Some((e, e.span.or(e.at)?)));
        errors
            .map(|(e, span)| Diagnostic {
                range: text::range(text, span.start as usize, span.end as usize),
                source: Some("forebay".to_owned()),
                message: e.message.clone(),
                ..Diagnostic::default()
            })
            .collect()
    }

    fn send(&self, path: &Path, diagnostics: Vec<Diagnostic>) -> Result<(), String> {
        let Some(uri) = text::uri(path) else { return Ok(()) };
        let params = PublishDiagnosticsParams::new(uri, diagnostics, None);
        let notification = Notification::new("textDocument/publishDiagnostics".to_owned(), params);
        self.connection.sender.send(Message::Notification(notification)).map_err(|e| e.to_string())
    }

    fn request(&self, request: Request) -> Result<(), String> {
        let Request { id, method, params } = request;
        let answer = self.answer(&method, params);
        let response = match answer {
            Some(Ok(value)) => Response::new_ok(id, value),
            Some(Err(why)) => Response::new_err(id, ErrorCode::InvalidParams as i32, why),
            None => Response::new_err(id, ErrorCode::MethodNotFound as i32, format!("no method {method}")),
        };
        self.reply(response)
    }

    fn reply(&self, response: Response) -> Result<(), String> {
        self.connection.sender.send(Message::Response(response)).map_err(|e| e.to_string())
    }

    /// Returns the answer to a request; `None` for a method that is not known.
    fn answer(&self, method: &str, params: Value) -> Option<Result<Value, String>> {
        Some(match method {
            "textDocument/completion" => read(params).map(|p: CompletionParams| {
                json!(self.completed(&p.text_document_position).unwrap_or_default())
            }),
            "completionItem/resolve" => {
                read(params).map(|item: CompletionItem| json!(completion::resolved(item)))
            }
            "textDocument/hover" => read(params).map(|p: HoverParams| {
                json!(self.spot(&p.text_document_position_params).and_then(|s| hover(&s)))
            }),
            "textDocument/definition" => read(params).map(|p: GotoDefinitionParams| {
                json!(self.spot(&p.text_document_position_params).map(|s| definitions(&s)))
            }),
            "textDocument/references" => read(params).map(|p: ReferenceParams| {
                json!(self.spot(&p.text_document_position).map(|s| references(&s, &p)))
            }),
            "textDocument/prepareRename" => read(params)
                .map(|p: TextDocumentPositionParams| json!(self.spot(&p).and_then(|s| renamed_range(&s)))),
            "textDocument/rename" => read(params).and_then(|p: RenameParams| {
                let spot = self.spot(&p.text_document_position).ok_or("no such document")?;
                rename(&spot, &p.new_name).map(|edit| json!(edit))
            }),
            "textDocument/formatting" => {
                read(params).map(|p: DocumentFormattingParams| json!(self.formatted(&p.text_document.uri)))
            }
            "textDocument/documentSymbol" => read(params).map(|p: DocumentSymbolParams| {
                json!(text::path(&p.text_document.uri).and_then(|path| self.outline(&path)))
            }),
            "textDocument/codeAction" => read(params).map(|p: CodeActionParams| {
                let path = text::path(&p.text_document.uri).unwrap_or_default();
                let actions =
                    self.project(&path).map(|project| diagnostics::actions(&project, &path, p.range));
                json!(actions.unwrap_or_default())
            }),
            _ => return None,
        })
    }

    /// Returns what fits at a place.
    fn completed(&self, at: &TextDocumentPositionParams) -> Option<Vec<CompletionItem>> {
        let spot = self.spot(at)?;
        let cursor = spot.cursor();
        if cursor.words.is_empty() {
            // The names of directives do not depend on the rest of the configuration.
            return Some(completion::items(&cursor, &[]));
        }
        // A directive without its semicolon takes in those behind it, and what they define. So it is left out.
        let mut text = spot.text.to_vec();
        text.get_mut(cursor.start..spot.offset)?.iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
        let path = text::path(&at.text_document.uri)?;
        let mut documents = self.documents.clone();
        documents.insert(path, text.into());
        let without = spot.project.as_ref().map(|(project, _)| Project::read(&project.main, &documents));
        Some(completion::items(&cursor, without.as_ref().map_or(&[], Project::names)))
    }

    fn spot(&self, at: &TextDocumentPositionParams) -> Option<Spot> {
        let path = text::path(&at.text_document.uri)?;
        let text = self.documents.get(&path)?.clone();
        let project = self.project(&path).and_then(|project| {
            let file = project.file(&path)?;
            Some((project, file))
        });
        Some(Spot { offset: text::offset(&text, at.position), text, project })
    }

    /// Returns the blocks of a document.
    fn outline(&self, path: &Path) -> Option<Vec<DocumentSymbol>> {
        let text = self.documents.get(path)?;
        let project = self.project(path);
        let context = project.and_then(|project| Some(project.context(project.file(path)?)));
        Some(outline::of(text, context.unwrap_or_else(|| guessed(text))))
    }

    /// Returns the edit that formats a document; none if it is formatted, or has mistakes that leave its layout open.
    fn formatted(&self, uri: &Uri) -> Option<Vec<TextEdit>> {
        let text = self.documents.get(&text::path(uri)?)?;
        let new = forebay_conf::fmt::format(text, FileId(0)).ok()?;
        if *new == **text {
            return Some(Vec::new());
        }
        let range = text::range(text, 0, text.len());
        Some(vec![TextEdit { range, new_text: String::from_utf8_lossy(&new).into_owned() }])
    }
}

fn read<P: serde::de::DeserializeOwned>(params: Value) -> Result<P, String> {
    serde_json::from_value(params).map_err(|e| e.to_string())
}

fn is_name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

/// Returns the identifier around an offset, and the offset of its first byte.
fn identifier(text: &[u8], offset: usize) -> (usize, &[u8]) {
    let before = text.get(..offset).unwrap_or(text);
    let start = before.iter().rposition(|b| !is_name(*b)).map_or(0, |at| at + 1);
    let rest = text.get(start..).unwrap_or_default();
    let end = rest.iter().position(|b| !is_name(*b)).unwrap_or(rest.len());
    (start, rest.get(..end).unwrap_or_default())
}

fn hover(spot: &Spot) -> Option<Hover> {
    let (start, name) = identifier(&spot.text, spot.offset);
    let name = String::from_utf8_lossy(name).into_owned();
    let before = spot.text.get(..start).unwrap_or_default();
    let is_variable = before.ends_with(b"$") || before.ends_with(b"${");
    let value = if is_variable {
        let own = spot.same().and_then(|(project, _, same)| {
            let at = same.iter().find(|o| o.defines)?.span;
            Some(format!("**${name}** is set in {}:{}\n", project.files.path(at.file).display(), at.line))
        });
        own.or_else(|| words::variable(&name.to_ascii_lowercase()))?
    } else {
        let cursor = Cursor::new(&spot.text, start, spot.context());
        if !cursor.words.is_empty() || cursor.in_comment {
            return None;
        }
        words::directive(&name, cursor.context)?
    };
    let contents = HoverContents::Markup(MarkupContent { kind: MarkupKind::Markdown, value });
    Some(Hover { contents, range: Some(text::range(&spot.text, start, start + name.len())) })
}

/// Returns where the name at a place is defined, or the files of an `include`.
fn definitions(spot: &Spot) -> Vec<Location> {
    if let Some((project, _, same)) = spot.same() {
        return same.iter().filter(|o| o.defines).filter_map(|o| project.location(o.span)).collect();
    }
    let Some((project, file)) = &spot.project else { return Vec::new() };
    let mut found = Vec::new();
    project.walk(&mut |d, _| {
        let holds = d.name.span.file == *file
            && (d.name.span.start as usize..=d.end.end as usize).contains(&spot.offset);
        if !holds || d.name.text != b"include" {
            return;
        }
        for inner in d.block.iter().flat_map(|b| &b.items) {
            let path = project.files.path(inner.name.span.file);
            let Some(uri) = text::uri(path) else { continue };
            let location = Location::new(uri, lsp_types::Range::default());
            if !found.contains(&location) {
                found.push(location);
            }
        }
    });
    found
}

fn references(spot: &Spot, params: &ReferenceParams) -> Vec<Location> {
    let Some((project, _, same)) = spot.same() else { return Vec::new() };
    let wanted = same.iter().filter(|o| params.context.include_declaration || !o.defines);
    wanted.filter_map(|o| project.location(o.span)).collect()
}

fn renamed_range(spot: &Spot) -> Option<lsp_types::Range> {
    let (project, own, same) = spot.same()?;
    let known = same.iter().any(|o| o.defines);
    (known && matches!(own.kind, Kind::Upstream | Kind::Variable)).then(|| project.range(own.span))
}

#[expect(clippy::mutable_key_type, reason = "the protocol's own type has URIs as keys")]
fn rename(spot: &Spot, new: &str) -> Result<WorkspaceEdit, String> {
    let (project, own, same) = spot.same().ok_or("there is no name here")?;
    if !same.iter().any(|o| o.defines) {
        return Err(format!("{} is not defined by the configuration", own.name));
    }
    let new = new.trim_start_matches('$');
    let is_right = match own.kind {
        Kind::Variable => {
            !new.is_empty() && new.bytes().all(is_name) && !new.starts_with(|c: char| c.is_ascii_digit())
        }
        Kind::Upstream => !new.is_empty() && new.bytes().all(|b| is_name(b) || matches!(b, b'-' | b'.')),
        _ => return Err("only groups and variables can be renamed".to_owned()),
    };
    if !is_right {
        return Err(format!("\"{new}\" is no name of this kind"));
    }
    // Names of variables are compared without case.
    let known = if own.kind == Kind::Variable { new.to_ascii_lowercase() } else { new.to_owned() };
    if spot.names().iter().any(|o| (o.kind, o.scope) == (own.kind, own.scope) && o.defines && o.name == known)
    {
        return Err(format!("\"{new}\" is there already"));
    }
    let mut changes: HashMap<Uri, Vec<TextEdit>> = HashMap::new();
    for occurrence in same {
        let uri = text::uri(project.files.path(occurrence.span.file)).ok_or("a file has no URI")?;
        let edit = TextEdit { range: project.range(occurrence.span), new_text: new.to_owned() };
        let edits = changes.entry(uri).or_default();
        // A file that is included twice is edited once.
        if !edits.contains(&edit) {
            edits.push(edit);
        }
    }
    Ok(WorkspaceEdit { changes: Some(changes), ..WorkspaceEdit::default() })
}

#[cfg(test)]
mod tests;
