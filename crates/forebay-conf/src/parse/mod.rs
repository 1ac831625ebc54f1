//! Parser of statements into a tree, which checks them against the grammar table.
//!
//! The order of the checks is nginx's, so that the first error is the one nginx reports. Parsing goes on
//! after each: an unknown directive loses its block, after other errors as much as possible is kept.

use crate::error::{Error, Level};
use crate::files::{Files, Reads};
use crate::glob;
use crate::grammar::{self, Contexts, Row, Status, Support, Value};
use crate::lexer::{Item, Lexer};
use crate::third_party;
use crate::tree::{Block, Directive, FileId, Span, Tree, Unit, Word};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod modules;
mod values;

/// Blocks in blocks and includes in includes beyond this are a loop or an attack, not a configuration.
const MAX_DEPTH: u32 = 100;
/// Most files that are included, each counted as often as it is. Files that include the next one twice double their number with
/// each step. Twenty thousand servers with a dozen shared files each are below it.
const MAX_INCLUDED: u32 = 300_000;
/// Most bytes of these files together, counted likewise.
const MAX_INCLUDED_BYTES: u64 = 512 << 20;

/// A file that is no configuration at all has thousands of unknown names; looking for neighbours of each
/// would take seconds.
const MAX_SUGGESTIONS: u32 = 100;

/// Result of [`parse`].
#[derive(Debug)]
pub struct Parsed {
    /// Everything that could be read. Only fit for use when no error is [`Level::Emerg`].
    pub tree: Tree,
    /// All errors and warnings by ordinal. The first `Emerg` one is what `nginx -t` would print.
    pub errors: Vec<Error>,
    /// Files that each unit was read from, by its path ([`parse_after`]). `None`: it occurs more than once.
    pub units: HashMap<Vec<u8>, Option<Reads>>,
}

impl Parsed {
    /// Returns the error that nginx would stop at.
    pub fn fatal(&self) -> Option<&Error> {
        self.errors.iter().find(|error| error.level == Level::Emerg)
    }
}

/// Returns the end of the directive that begins at an offset of a text, its block included.
pub fn end_of_directive(src: &[u8], start: usize) -> usize {
    let mut lexer = Lexer::new(src.get(start..).unwrap_or_default(), FileId(0));
    if let Item::Open(..) | Item::BadOpen(_) = lexer.next() {
        lexer.skip_block();
    }
    start + lexer.offset()
}

/// Reads the configuration file `main` and the files that it includes.
///
/// `globals` is the text of the `-g` option, which comes first. Relative includes start at
/// `conf_dir_for_relative_includes`, the directory of the main file.
pub fn parse(main: &Path, globals: &str, conf_dir_for_relative_includes: &Path, files: &mut Files) -> Parsed {
    parse_with(main, globals, conf_dir_for_relative_includes, files, None)
}

/// Reads as [`parse`] does, but gives each file that an `include` in the http block names a directive of its own
/// ([`crate::tree::Unit`]): an `include` with the path, and the content of the file. Files for which `is_known` returns `true` are not
/// read, and have no content; such a directive may have several paths.
pub fn parse_after(
    main: &Path,
    globals: &str,
    conf_dir_for_relative_includes: &Path,
    files: &mut Files,
    is_known: &mut IsKnown<'_>,
) -> Parsed {
    parse_with(main, globals, conf_dir_for_relative_includes, files, Some(is_known))
}

/// Tells whether the directives of a file are known from before.
pub type IsKnown<'k> = dyn FnMut(&Path, &mut Files) -> bool + 'k;

fn parse_with(
    main: &Path,
    globals: &str,
    conf_dir_for_relative_includes: &Path,
    files: &mut Files,
    is_known: Option<&mut IsKnown<'_>>,
) -> Parsed {
    let mut parser = Parser {
        files,
        conf_dir: conf_dir_for_relative_includes,
        errors: vec![],
        ordinal: 0,
        including: vec![],
        blocks_begun: false,
        suggestions: 0,
        seen: vec![HashSet::new()],
        is_known,
        units: HashMap::new(),
        included: 0,
        included_bytes: 0,
    };
    let mut root = parser.command_line(globals);
    parser.main_file(main, &mut root);
    let (mut errors, units) = (parser.errors, parser.units);
    errors.sort_by_key(|error| error.ordinal);
    Parsed { tree: Tree { root }, errors, units }
}

/// Parses a text as the content of one block of a context, as if nothing else existed: `include` finds no file, and a `}` that
/// nothing opened is an error. Places count from the beginning of the text.
pub fn body(text: &[u8], context: Contexts) -> Parsed {
    let mut files = Files::recorded::<PathBuf, Vec<u8>>([]);
    let mut parser = Parser {
        files: &mut files,
        conf_dir: Path::new("/"),
        errors: vec![],
        ordinal: 0,
        including: vec![],
        blocks_begun: true,
        suggestions: 0,
        seen: vec![HashSet::new()],
        is_known: None,
        units: HashMap::new(),
        included: 0,
        included_bytes: 0,
    };
    let mut lexer = Lexer::new(text, FileId(0));
    let root = parser.block(&mut lexer, Scope { kind: Kind::Table(context), quiet: false, depth: 1 }, None);
    let (mut errors, units) = (parser.errors, parser.units);
    errors.sort_by_key(|error| error.ordinal);
    Parsed { tree: Tree { root }, errors, units }
}

/// Rules for the words of a block.
#[derive(Clone, Copy)]
enum Kind {
    /// The table, in this context.
    Table(Contexts),
    /// Nothing: entries of `types`, `map` and the like.
    Data(Includes),
    /// Nothing, and no error is worth telling: the block of an unknown directive.
    Unknown,
}

/// Treatment of `include` in a data block.
#[derive(Clone, Copy, PartialEq)]
enum Includes {
    /// It is an entry like any other.
    No,
    /// It is the directive if it has one word.
    WithOneWord,
    /// It is always the directive.
    Always,
}

#[derive(Clone, Copy)]
struct Scope {
    kind: Kind,
    /// Inside a block that was refused: directives that Forebay lacks are not reported again.
    quiet: bool,
    depth: u32,
}

impl Scope {
    fn inside(self, kind: Kind, quiet: bool) -> Scope {
        Scope { kind, quiet: self.quiet || quiet, depth: self.depth + 1 }
    }
}

struct Parser<'a, 'k> {
    files: &'a mut Files,
    conf_dir: &'a Path,
    errors: Vec<Error>,
    ordinal: u32,
    /// Files being read, outermost first.
    including: Vec<PathBuf>,
    /// A block has been read: too late for `load_module`.
    blocks_begun: bool,
    /// Names looked up for a suggestion.
    suggestions: u32,
    /// Directives met in each open block, those of included files with it.
    seen: Vec<HashSet<&'static str>>,
    /// Set: files of the http block are units.
    is_known: Option<&'a mut IsKnown<'k>>,
    units: HashMap<Vec<u8>, Option<Reads>>,
    /// Number of files read so far, see [`MAX_INCLUDED`].
    included: u32,
    /// Their bytes.
    included_bytes: u64,
}

/// The words of one directive and where they ended.
struct Statement {
    words: Vec<Word>,
    end: Span,
    /// Ended by `{`.
    opens: bool,
    ordinal: u32,
}

impl Statement {
    fn name(&self) -> &Word {
        self.words.first().expect("the lexer gives no statement without words")
    }

    fn args(&self) -> &[Word] {
        self.words.get(1..).unwrap_or_default()
    }
}

impl Parser<'_, '_> {
    fn command_line(&mut self, globals: &str) -> Block {
        self.files.set_globals(globals.as_bytes());
        let mut lexer = Lexer::new(globals.as_bytes(), FileId::COMMAND_LINE);
        self.block(&mut lexer, Scope { kind: Kind::Table(Contexts::MAIN), quiet: false, depth: 0 }, None)
    }

    fn main_file(&mut self, main: &Path, root: &mut Block) {
        let scope = Scope { kind: Kind::Table(Contexts::MAIN), quiet: false, depth: 0 };
        if let Err(message) = self.file(main, scope, &mut root.items) {
            let ordinal = self.next_ordinal();
            self.errors.push(Error {
                level: Level::Emerg,
                message,
                span: None,
                at: None,
                hint: None,
                ordinal,
            });
        }
    }

    /// Reads a whole file into `items`; an error is nginx's text for why it could not be read.
    fn file(&mut self, path: &Path, scope: Scope, items: &mut Vec<Directive>) -> Result<(), String> {
        let (id, bytes) = self.files.read_shared(path).map_err(|error| unreadable(path, &error))?;
        self.included = self.included.saturating_add(1);
        self.included_bytes = self.included_bytes.saturating_add(bytes.len() as u64);
        if self.has_too_much() {
            return Err("too many files are included".to_owned());
        }
        self.files.mark_configuration(id);
        self.including.push(path.to_owned());
        let mut lexer = Lexer::new(&bytes, id);
        items.extend(self.block(&mut lexer, scope, None).items);
        self.including.pop();
        Ok(())
    }

    /// Returns `true` if included files are more than any configuration has.
    fn has_too_much(&self) -> bool {
        self.included > MAX_INCLUDED || self.included_bytes > MAX_INCLUDED_BYTES
    }

    /// Reads to the `}` of `opener`, or to the end of the text when there is none.
    fn block(&mut self, lexer: &mut Lexer<'_>, scope: Scope, opener: Option<&Word>) -> Block {
        let mut block = Block::default();
        loop {
            match lexer.next() {
                Item::Simple(words, end) => {
                    let statement = self.begin(words, end, false);
                    block.items.extend(self.statement(lexer, scope, statement));
                }
                Item::Open(words, end) => {
                    let statement = self.begin(words, end, true);
                    block.items.extend(self.statement(lexer, scope, statement));
                }
                Item::Bad(error) => self.lexical(error, scope),
                Item::BadOpen(error) => {
                    self.lexical(error, scope);
                    lexer.skip_block();
                }
                Item::Close(span) if opener.is_some() => {
                    block.end = Some(span);
                    return block;
                }
                Item::Close(span) => {
                    let ordinal = self.next_ordinal();
                    self.emerg("unexpected \"}\"".into(), span, span, ordinal);
                }
                Item::Eof { at, told } => {
                    if let (Some(opener), false) = (opener, told) {
                        self.unclosed(opener, at);
                        lexer.end_is_told();
                    }
                    return block;
                }
            }
        }
    }

    fn inner_block(&mut self, lexer: &mut Lexer<'_>, scope: Scope, opener: &Word) -> Block {
        self.seen.push(HashSet::new());
        let block = self.block(lexer, scope, Some(opener));
        self.seen.pop();
        block
    }

    fn unclosed(&mut self, opener: &Word, at: Span) {
        let ordinal = self.next_ordinal();
        let hint = format!("the block of \"{}\" in line {} is not closed", opener.as_str(), opener.span.line);
        let message = "unexpected end of file, expecting \"}\"".to_owned();
        self.errors.push(Error {
            level: Level::Emerg,
            message,
            span: Some(opener.span),
            at: Some(at),
            hint: Some(hint),
            ordinal,
        });
    }

    fn lexical(&mut self, mut error: Error, scope: Scope) {
        error.ordinal = self.next_ordinal();
        if !matches!(scope.kind, Kind::Unknown) {
            self.errors.push(error);
        }
    }

    fn begin(&mut self, words: Vec<Word>, end: Span, opens: bool) -> Statement {
        Statement { words, end, opens, ordinal: self.next_ordinal() }
    }

    fn statement(&mut self, lexer: &mut Lexer<'_>, scope: Scope, statement: Statement) -> Option<Directive> {
        if let Some(message) = block_refusal(lexer, scope).filter(|_| statement.opens) {
            self.at_name(message.into(), &statement, None);
            lexer.skip_block();
            return None;
        }
        match scope.kind {
            Kind::Unknown => {
                if statement.opens {
                    lexer.skip_block();
                }
                None
            }
            Kind::Data(includes) => self.entry(lexer, scope, includes, statement),
            Kind::Table(context) => self.directive(lexer, scope, context, statement),
        }
    }

    /// Parses an entry of a data block.
    fn entry(
        &mut self,
        lexer: &mut Lexer<'_>,
        scope: Scope,
        includes: Includes,
        statement: Statement,
    ) -> Option<Directive> {
        if statement.opens {
            let end = statement.end;
            self.emerg("unexpected \"{\"".into(), end, end, statement.ordinal);
            lexer.skip_block();
            return None;
        }
        let count = statement.args().len();
        let is_include = statement.name().text == b"include" && includes != Includes::No;
        if is_include && count != 1 && includes == Includes::Always {
            self.wrong_count(&statement);
            return None;
        }
        let block = if is_include && count == 1 { Some(self.include(scope, &statement)) } else { None };
        Some(finish(statement, block, None))
    }

    /// Checks a directive of sound form. True: the directive was refused.
    fn check_meaning(&mut self, row: &Row, statement: &Statement, scope: Scope) -> bool {
        self.check_status(row, statement);
        let refused = self.check_support(row, statement, scope);
        if row.name == "load_module" {
            self.check_module(statement);
        }
        refused
    }

    /// Parses a directive of the table.
    fn directive(
        &mut self,
        lexer: &mut Lexer<'_>,
        scope: Scope,
        context: Contexts,
        statement: Statement,
    ) -> Option<Directive> {
        let Some(row) = self.find_row(&statement, context) else {
            self.skip_misplaced(lexer, scope, context, &statement);
            return None;
        };
        let sound = self.check_form(row, &statement);
        if let Some(seen) = self.seen.last_mut() {
            seen.insert(row.name);
        }
        if statement.opens && !row.block {
            lexer.skip_block();
            return None;
        }
        let refused = sound && self.check_meaning(row, &statement, scope);
        let block = if sound && row.name == "include" {
            Some(self.include(scope, &statement))
        } else if sound && row.name == "state" {
            Some(self.state(scope, &statement))
        } else if statement.opens {
            self.blocks_begun = true;
            Some(self.inner_block(lexer, scope.inside(content(row, context), refused), statement.name()))
        } else {
            None
        };
        sound.then(|| finish(statement, block, Some(row)))
    }

    /// Returns the row for the name and context. Reports an error if there is none.
    fn find_row(&mut self, statement: &Statement, context: Contexts) -> Option<&'static Row> {
        let name = statement.name();
        let rows = grammar::rows(&name.text);
        let Some(first) = rows.first() else {
            if let Some((module, instead)) = third_party::third_party(&name.text) {
                let message = format!(
                    "\"{}\" directive is not supported: it belongs to the third-party module {module}",
                    printable(name)
                );
                self.at_name(message, statement, Some(instead.to_owned()));
                return None;
            }
            let hint = match third_party::removed(&name.text) {
                Some(instead) => Some(instead.to_owned()),
                None => self.suggest(name, context),
            };
            self.at_name(format!("unknown directive \"{}\"", printable(name)), statement, hint);
            return None;
        };
        let found = rows.iter().find(|row| row.contexts.meets(context));
        if let Support::Never(why) = found.unwrap_or(first).support {
            let instead = third_party::third_party(&name.text).map(|(_, instead)| instead.to_owned());
            self.at_name(format!("\"{}\" directive is not supported: {why}", first.name), statement, instead);
            return None;
        }
        if found.is_none() {
            let places: Vec<&str> = rows.iter().flat_map(|row| row.contexts.names()).collect();
            let hint = format!("it may stand in: {}", places.join(", "));
            self.at_name(format!("\"{}\" directive is not allowed here", first.name), statement, Some(hint));
        }
        found
    }

    fn suggest(&mut self, name: &Word, context: Contexts) -> Option<String> {
        if name.text.contains(&b'}') {
            return Some("a word with braces in it, like a regular expression, needs quotes".to_owned());
        }
        if self.suggestions >= MAX_SUGGESTIONS {
            return None;
        }
        self.suggestions += 1;
        grammar::suggest_in(&name.text, context).map(|s| format!("did you mean \"{s}\"?"))
    }

    /// Skips the block of a directive without a row here. A block that is only in the wrong place is parsed.
    fn skip_misplaced(
        &mut self,
        lexer: &mut Lexer<'_>,
        scope: Scope,
        context: Contexts,
        statement: &Statement,
    ) {
        if !statement.opens {
            return;
        }
        let name = &statement.name().text;
        if name.ends_with(b"_by_lua_block") {
            // A block that does not end is reported with the blocks around it.
            let _closed = lexer.skip_lua();
            return;
        }
        let row = grammar::rows(name).iter().find(|row| row.block && !row.support.is_refused());
        let kind = row.map_or(Kind::Unknown, |row| content(row, context));
        self.inner_block(lexer, scope.inside(kind, false), statement.name());
    }

    /// Checks terminator, count and flag, in nginx's order. Reports the first error.
    fn check_form(&mut self, row: &Row, statement: &Statement) -> bool {
        if statement.opens && !row.block {
            let message = format!("directive \"{}\" is not terminated by \";\"", row.name);
            self.at_name(message, statement, missing_semicolon(statement));
            return false;
        }
        if !statement.opens && row.block {
            self.at_name(format!("directive \"{}\" has no opening \"{{\"", row.name), statement, None);
            return false;
        }
        if !row.args.allows(statement.args().len()) {
            self.wrong_count(statement);
            return false;
        }
        self.check_values(row, statement)
    }

    fn check_values(&mut self, row: &Row, statement: &Statement) -> bool {
        let again = self.seen.last().is_some_and(|seen| seen.contains(row.name));
        let Some(values::Wrong { message, word }) = values::check(row, statement.args(), again) else {
            return true;
        };
        let hint = match row.value {
            Value::OneOf(words) if word.is_some() => {
                Some(format!("it may be: {}", words.split('|').collect::<Vec<_>>().join(", ")))
            }
            _ => None,
        };
        let span = word.unwrap_or(statement.name()).span;
        self.report(Level::Emerg, message, span, statement, hint);
        false
    }

    /// Adds nginx's warning for a deprecated or obsolete directive.
    fn check_status(&mut self, row: &Row, statement: &Statement) {
        let name = row.name;
        let message = match row.status {
            Status::Obsolete(None) => format!("the \"{name}\" directive is obsolete, ignored"),
            Status::Obsolete(Some(other)) => {
                format!("the \"{name}\" directive is obsolete, use the \"{other}\" directive instead")
            }
            Status::Deprecated(Some(other)) => {
                format!("the \"{name}\" directive is deprecated, use the \"{other}\" directive instead")
            }
            Status::Current | Status::Deprecated(None) => return,
        };
        self.report(Level::Warn, message, statement.name().span, statement, None);
    }

    /// Reports a directive that Forebay does not support. Returns `true` if the directive is refused.
    fn check_support(&mut self, row: &Row, statement: &Statement, scope: Scope) -> bool {
        if scope.quiet || asks_for_default(row, statement) {
            return false;
        }
        match row.support {
            Support::Yes | Support::Met | Support::Never(_) => false,
            // nginx ignores it as well.
            Support::Hint if matches!(row.status, Status::Obsolete(_)) => false,
            Support::Hint => {
                let message = format!("\"{}\" directive is not supported yet, ignored", row.name);
                let span = statement.name().span;
                self.errors.push(Error {
                    level: Level::Warn,
                    message,
                    span: Some(span),
                    at: Some(statement.end),
                    hint: instead(row).map(str::to_owned),
                    ordinal: statement.ordinal,
                });
                false
            }
            Support::Later(advice) => {
                let hint = instead(row).or((!advice.is_empty()).then_some(advice)).map(str::to_owned);
                self.at_name(format!("\"{}\" directive is not supported yet", row.name), statement, hint);
                true
            }
        }
    }

    fn check_module(&mut self, statement: &Statement) {
        let Some(word) = statement.args().first() else { return };
        if self.blocks_begun {
            self.at_name("\"load_module\" directive is specified too late".into(), statement, None);
            return;
        }
        if let Err(why) = modules::check(&word.text) {
            let message = format!("module \"{}\" is not loaded: {why}", printable(word));
            self.errors.push(Error {
                level: Level::Notice,
                message,
                span: Some(word.span),
                at: Some(statement.end),
                hint: None,
                ordinal: statement.ordinal,
            });
        }
    }

    /// Parses the included files.
    fn include(&mut self, scope: Scope, statement: &Statement) -> Block {
        let Some(word) = statement.args().first() else { return Block::default() };
        let name = word.text.split(|&b| b == 0).next().unwrap_or_default();
        let path = self.conf_dir.join(OsStr::from_bytes(name));
        let paths = if glob::is_pattern(name) { self.files.glob(&path) } else { Arc::from([path]) };
        self.include_files(scope, statement, &paths)
    }

    fn include_files(&mut self, scope: Scope, statement: &Statement, paths: &[PathBuf]) -> Block {
        let mut block = Block::default();
        let span = statement.args().first().map(|w| w.span);
        let are_units =
            matches!(scope.kind, Kind::Table(Contexts::HTTP)) && statement.name().text == b"include";
        for path in paths {
            if self.has_too_much() {
                // It has been reported once.
                break;
            }
            let is_unit = are_units && self.is_known.is_some();
            if is_unit && self.knows(path) {
                add_kept(&mut block.items, statement, path);
                continue;
            }
            let outer = is_unit.then(|| self.files.exchange_reads(Reads::default()));
            let errors = self.errors.len();
            let mut items = Vec::new();
            let looped = self.including.contains(path) || scope.depth >= MAX_DEPTH;
            let read = if looped {
                Err(format!("\"{}\" includes itself", path.display()))
            } else {
                let scope = Scope { depth: scope.depth + 1, ..scope };
                self.file(path, scope, &mut items)
            };
            if let Err(message) = read {
                self.errors.push(Error {
                    level: Level::Emerg,
                    message,
                    span,
                    at: Some(statement.end),
                    hint: None,
                    ordinal: statement.ordinal,
                });
            }
            if let Some(outer) = outer {
                let reads = self.files.exchange_reads(outer);
                self.add_unit(path, reads);
                let state = Unit::Read { clean: self.errors.len() == errors };
                let content = Some(Block { items, end: None });
                block.items.push(unit(statement, path, state, content));
            } else {
                block.items.append(&mut items);
            }
        }
        block
    }

    /// Notes what a unit was read from. A file that occurs twice is no unit.
    fn add_unit(&mut self, path: &Path, reads: Reads) {
        let name = path.as_os_str().as_bytes();
        match self.units.get_mut(name) {
            None => drop(self.units.insert(name.to_owned(), Some(reads))),
            Some(first) => {
                self.files.note_reads(reads);
                self.files.note_reads(first.take().unwrap_or_default());
            }
        }
    }

    fn knows(&mut self, path: &Path) -> bool {
        self.is_known.as_mut().is_some_and(|is_known| is_known(path, self.files))
    }

    /// Parses the file of `state`, which need not exist yet.
    fn state(&mut self, scope: Scope, statement: &Statement) -> Block {
        let Some(word) = statement.args().first() else { return Block::default() };
        let path = self.conf_dir.join(OsStr::from_bytes(&word.text));
        match self.files.read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Block::default(),
            _ => self.include_files(scope, statement, &[path]),
        }
    }

    fn wrong_count(&mut self, statement: &Statement) {
        let name = statement.name();
        let message = format!("invalid number of arguments in \"{}\" directive", printable(name));
        self.at_name(message, statement, missing_semicolon(statement).or_else(|| usage(name)));
    }

    fn at_name(&mut self, message: String, statement: &Statement, hint: Option<String>) {
        self.report(Level::Emerg, message, statement.name().span, statement, hint);
    }

    /// Adds an error about a part of a statement.
    fn report(
        &mut self,
        level: Level,
        message: String,
        span: Span,
        statement: &Statement,
        hint: Option<String>,
    ) {
        self.errors.push(Error {
            level,
            message,
            span: Some(span),
            at: Some(statement.end),
            hint,
            ordinal: statement.ordinal,
        });
    }

    fn emerg(&mut self, message: String, span: Span, at: Span, ordinal: u32) {
        self.errors.push(Error {
            level: Level::Emerg,
            message,
            span: Some(span),
            at: Some(at),
            hint: None,
            ordinal,
        });
    }

    fn next_ordinal(&mut self) -> u32 {
        let ordinal = self.ordinal;
        self.ordinal = self.ordinal.saturating_add(1);
        ordinal
    }
}

/// Adds a file whose directives are known. Those that follow each other are words of one directive.
fn add_kept(items: &mut Vec<Directive>, include: &Statement, path: &Path) {
    if items.last().is_none_or(|last| last.unit != Some(Unit::Kept)) {
        items.push(unit(include, path, Unit::Kept, None));
    } else if let Some(last) = items.last_mut() {
        let span = include.name().span;
        last.args.push(Word { text: path.as_os_str().as_bytes().to_vec(), span, quoted: false });
    }
}

/// Makes the directive of a file that an `include` names.
fn unit(include: &Statement, path: &Path, state: Unit, block: Option<Block>) -> Directive {
    let name = include.name().clone();
    let file = Word { text: path.as_os_str().as_bytes().to_vec(), span: name.span, quoted: false };
    let (end, ordinal) = (include.end, include.ordinal);
    let row = grammar::row(b"include", Contexts::HTTP);
    Directive { name, args: vec![file], block, end, ordinal, unit: Some(state), row }
}

fn finish(statement: Statement, block: Option<Block>, row: Option<&'static Row>) -> Directive {
    let Statement { words, end, ordinal, .. } = statement;
    let mut words = words.into_iter();
    let name = words.next().expect("the lexer gives no statement without words");
    Directive { name, args: words.collect(), block, end, ordinal, unit: None, row }
}

/// Returns why no block may be opened here.
fn block_refusal(lexer: &Lexer<'_>, scope: Scope) -> Option<&'static str> {
    if lexer.is_command_line() {
        return Some("block directives are not supported in -g option");
    }
    (scope.depth >= MAX_DEPTH).then_some("blocks are nested too deep")
}

/// Returns the context inside a directive's block. `context` is the one around the directive. Returns `None` if the block holds data, or
/// there is no block.
pub fn inside(row: &Row, context: Contexts) -> Option<Contexts> {
    match content(row, context) {
        Kind::Table(inside) if row.block => Some(inside),
        _ => None,
    }
}

/// Returns the kind of a directive's block.
fn content(row: &Row, context: Contexts) -> Kind {
    let of_module = |(module, name, _): &&(&str, &str, Contexts)| {
        *name == row.name && (module.is_empty() || *module == row.module)
    };
    if let Some((_, _, inside)) = BLOCKS.iter().find(of_module) {
        return Kind::Table(*inside);
    }
    if row.name == "if" {
        let in_server = context == Contexts::SERVER;
        return Kind::Table(if in_server { Contexts::IF_IN_SERVER } else { Contexts::IF_IN_LOCATION });
    }
    let data = DATA_BLOCKS.iter().find(|(name, _)| *name == row.name);
    data.map_or(Kind::Unknown, |(_, includes)| Kind::Data(*includes))
}

/// Returns `true` if the block of a directive with this name holds data and no directives.
pub(crate) fn holds_data(name: &[u8]) -> bool {
    DATA_BLOCKS.iter().any(|(known, _)| known.as_bytes() == name)
}

/// Blocks with data.
const DATA_BLOCKS: [(&str, Includes); 7] = [
    ("types", Includes::Always),
    ("map", Includes::WithOneWord),
    ("num_map", Includes::WithOneWord),
    ("geo", Includes::WithOneWord),
    ("split_clients", Includes::No),
    ("charset_map", Includes::No),
    ("match", Includes::No),
];

/// Blocks with directives by module, if that matters, and name.
const BLOCKS: [(&str, &str, Contexts); 12] = [
    ("", "events", Contexts::EVENTS),
    ("", "http", Contexts::HTTP),
    ("", "stream", Contexts::STREAM),
    ("", "mail", Contexts::MAIL),
    ("http_core", "server", Contexts::SERVER),
    ("stream_core", "server", Contexts::STREAM_SERVER),
    ("mail_core", "server", Contexts::MAIL_SERVER),
    ("http_upstream", "upstream", Contexts::UPSTREAM),
    ("stream_upstream", "upstream", Contexts::STREAM_UPSTREAM),
    ("", "location", Contexts::LOCATION),
    ("", "limit_except", Contexts::LIMIT_EXCEPT),
    ("acme", "acme_issuer", Contexts::ACME_ISSUER),
];

/// Returns the counterpart of a directive without effect, if it has one, or the reason why it is refused.
fn instead(row: &Row) -> Option<&'static str> {
    let shares = row.name.starts_with("zone_sync");
    shares.then_some(
        "use \"shared_store\" in the http block, with \"sync\" on \"limit_req_zone\", \"limit_conn_zone\" and \"sticky learn\"",
    )
}

/// Returns `true` if a directive sets its default, which needs no support.
fn asks_for_default(row: &Row, statement: &Statement) -> bool {
    match statement.args() {
        [only] => !row.default.is_empty() && only.text.eq_ignore_ascii_case(row.default.as_bytes()),
        _ => false,
    }
}

/// Returns a hint when a word in a later line than its neighbour names a directive: the `;` between is missing.
fn missing_semicolon(statement: &Statement) -> Option<String> {
    let words = statement.words.iter();
    words.clone().zip(words.skip(1)).find_map(|(last, next)| {
        let begins = next.span.line > last.span.line && !grammar::rows(&next.text).is_empty();
        begins.then(|| format!("a \";\" is missing after \"{}\" in line {}", last.as_str(), last.span.line))
    })
}

fn usage(name: &Word) -> Option<String> {
    let args = grammar::rows(&name.text).first()?.args;
    let Some(max) = args.max else { return Some(format!("it takes {} or more", arguments(args.min))) };
    Some(match max {
        0 => "it takes no arguments".to_owned(),
        1 if args.flag => "it takes \"on\" or \"off\"".to_owned(),
        _ if args.min == max => format!("it takes {}", arguments(max)),
        _ => format!("it takes {} to {max} arguments", args.min),
    })
}

fn arguments(count: usize) -> String {
    if count == 1 { "1 argument".to_owned() } else { format!("{count} arguments") }
}

/// Returns a word as nginx prints it in messages, up to the first NUL.
fn printable(word: &Word) -> String {
    String::from_utf8_lossy(word.text.split(|&b| b == 0).next().unwrap_or_default()).into_owned()
}

/// Returns nginx's text for a file that cannot be read.
fn unreadable(path: &Path, error: &std::io::Error) -> String {
    const EISDIR: i32 = 21;
    let call = if error.raw_os_error() == Some(EISDIR) { "pread" } else { "open" };
    format!("{call}() \"{}\" failed ({})", path.display(), forebay_sys::errno::errno(error))
}

#[cfg(test)]
mod tests;
