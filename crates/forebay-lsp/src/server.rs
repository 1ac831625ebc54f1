//! The session with a client: documents, requests and their answers.

use crate::cursor::Cursor;
use crate::project::{Check, Documents, Project, guessed, with};
use crate::symbols::{self, Kind, Occurrence};
use crate::{completion, diagnostics, outline, text, words};
use forebay_conf::grammar::Contexts;
use forebay_conf::tree::FileId;
use lsp_server::{Connection, ErrorCode, Message, Notification, Request, Response};
use lsp_types::{
    CodeActionParams, CodeActionProviderCapability, CompletionItem, CompletionOptions, CompletionParams,
    Diagnostic, DidChangeTextDocumentParams, DidCloseTextDocumentParams, DidOpenTextDocumentParams,
    DocumentFormattingParams, DocumentSymbolParams, GotoDefinitionParams, Hover, HoverContents, HoverParams,
    HoverProviderCapability, Location, MarkupContent, MarkupKind, OneOf, PublishDiagnosticsParams,
    ReferenceParams, RenameOptions, RenameParams, ServerCapabilities, TextDocumentPositionParams,
    TextDocumentSyncCapability, TextDocumentSyncKind, TextEdit, Uri, WorkDoneProgressOptions, WorkspaceEdit,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
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
    let mut session = Session {
        connection,
        check,
        configured,
        documents: Documents::new(),
        published: BTreeSet::new(),
        stale: false,
    };
    let receiver = connection.receiver.clone();
    let (sender, messages) = std::sync::mpsc::channel();
    // The library's own channel holds nothing, so that it never shows whether more is waiting.
    std::thread::spawn(move || {
        receiver.into_iter().try_for_each(|message| sender.send(message).map_err(drop))
    });
    let gone = || "the client has gone away without ending the session".to_owned();
    let mut ending = false;
    loop {
        let message = match messages.try_recv() {
            Ok(message) => message,
            // While more is waiting, diagnostics would be about a text that is gone.
            Err(TryRecvError::Empty) if session.stale => {
                session.publish()?;
                continue;
            }
            Err(TryRecvError::Empty) => messages.recv().map_err(|_| gone())?,
            Err(TryRecvError::Disconnected) => return Err(gone()),
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
        text_document_sync: Some(TextDocumentSyncCapability::Kind(TextDocumentSyncKind::FULL)),
        completion_provider: Some(CompletionOptions {
            trigger_characters: Some(["$", "@", "/"].map(str::to_owned).to_vec()),
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

struct Session<'c> {
    connection: &'c Connection,
    check: Check,
    /// Main file that the client names.
    configured: Option<PathBuf>,
    documents: Documents,
    /// Files that have diagnostics, which have to be taken back.
    published: BTreeSet<PathBuf>,
    /// Documents have changed since the last diagnostics.
    stale: bool,
}

/// A place in an open document.
struct Spot {
    text: Arc<[u8]>,
    offset: usize,
    /// The configuration that the document belongs to, with its names and the document's number in it.
    project: Option<(Project, Vec<Occurrence>, FileId)>,
}

impl Spot {
    fn context(&self) -> Contexts {
        match &self.project {
            Some((project, _, file)) => project.context(*file),
            None => guessed(&self.text),
        }
    }

    fn names(&self) -> &[Occurrence] {
        self.project.as_ref().map_or(&[], |(_, names, _)| names)
    }

    fn cursor(&self) -> Cursor {
        Cursor::new(&self.text, self.offset, self.context())
    }

    /// Returns the name at the place, and all that are the same.
    fn same(&self) -> Option<(&Project, &Occurrence, Vec<&Occurrence>)> {
        let (project, names, file) = self.project.as_ref()?;
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
                Ok(mut changed) => match changed.content_changes.pop() {
                    Some(whole) => (changed.text_document.uri, Some(whole.text)),
                    None => return,
                },
                Err(_) => return,
            },
            "textDocument/didClose" => match serde_json::from_value::<DidCloseTextDocumentParams>(params) {
                Ok(closed) => (closed.text_document.uri, None),
                Err(_) => return,
            },
            "textDocument/didSave" | "workspace/didChangeWatchedFiles" => {
                self.stale = true;
                return;
            }
            _ => return,
        };
        let Some(path) = text::path(&uri) else { return };
        match text.filter(|text| text.len() <= LARGEST) {
            Some(text) => drop(self.documents.insert(path, text.into_bytes().into())),
            None => drop(self.documents.remove(&path)),
        }
        self.stale = true;
    }

    /// Sends the diagnostics of all configurations that open documents belong to.
    fn publish(&mut self) -> Result<(), String> {
        self.stale = false;
        let mut all: BTreeMap<PathBuf, Vec<Diagnostic>> = BTreeMap::new();
        let mut mains = BTreeSet::new();
        for path in self.documents.keys() {
            match Project::of(path, self.configured.as_deref(), &self.documents) {
                Some(project) if mains.insert(project.main.clone()) => all.extend(self.diagnose(&project)),
                Some(_) => {}
                None => drop(all.insert(path.clone(), self.alone(path))),
            }
        }
        let before = std::mem::take(&mut self.published);
        for path in before.difference(&all.keys().cloned().collect()) {
            self.send(path, Vec::new())?;
        }
        for (path, list) in all {
            if !list.is_empty() || before.contains(&path) || self.documents.contains_key(&path) {
                self.send(&path, list.clone())?;
            }
            if !list.is_empty() {
                self.published.insert(path);
            }
        }
        Ok(())
    }

    fn diagnose(&self, project: &Project) -> BTreeMap<PathBuf, Vec<Diagnostic>> {
        let mut files = with(&self.documents);
        let errors = (self.check)(&project.environment(), &mut files);
        // The check numbers files by itself; places are told by the paths.
        let moved = |mut error: forebay_conf::error::Error| {
            let id = |file: FileId| project.file(files.path(file));
            error.span = error.span.and_then(|s| Some(forebay_conf::tree::Span { file: id(s.file)?, ..s }));
            error.at = error.at.and_then(|s| Some(forebay_conf::tree::Span { file: id(s.file)?, ..s }));
            error
        };
        let errors: Vec<_> = errors.into_iter().map(moved).collect();
        diagnostics::of(project, &errors)
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
                let text = text::path(&p.text_document.uri).and_then(|path| self.documents.get(&path));
                json!(text.map(|text| outline::of(text, guessed(text))))
            }),
            "textDocument/codeAction" => read(params).map(|p: CodeActionParams| {
                let path = text::path(&p.text_document.uri).unwrap_or_default();
                let project = Project::of(&path, self.configured.as_deref(), &self.documents);
                json!(
                    project.map(|project| diagnostics::actions(&project, &path, p.range)).unwrap_or_default()
                )
            }),
            _ => return None,
        })
    }

    /// Returns what fits at a place.
    fn completed(&self, at: &TextDocumentPositionParams) -> Option<Vec<CompletionItem>> {
        let spot = self.spot(at)?;
        let cursor = spot.cursor();
        // A directive without its semicolon takes in those behind it, and what they define. So it is left out.
        let mut text = spot.text.to_vec();
        text.get_mut(cursor.start..spot.offset)?.iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
        let mut documents = self.documents.clone();
        documents.insert(text::path(&at.text_document.uri)?, text.into());
        let without = self.spot_in(at, &documents)?;
        Some(completion::items(&cursor, without.names()))
    }

    fn spot(&self, at: &TextDocumentPositionParams) -> Option<Spot> {
        self.spot_in(at, &self.documents)
    }

    fn spot_in(&self, at: &TextDocumentPositionParams, documents: &Documents) -> Option<Spot> {
        let path = text::path(&at.text_document.uri)?;
        let text = documents.get(&path)?.clone();
        let project = Project::of(&path, self.configured.as_deref(), documents).and_then(|project| {
            let names = symbols::all(&project);
            let file = project.file(&path)?;
            Some((project, names, file))
        });
        Some(Spot { offset: text::offset(&text, at.position), text, project })
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
    let Some((project, _, file)) = &spot.project else { return Vec::new() };
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
