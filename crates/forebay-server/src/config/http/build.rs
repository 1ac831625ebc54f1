//! Reading of the http block.

use super::units::{self, Memory, Slot, State, UnitBuild, UnitEffects};
use super::{Kind, LocationId, ROOT};
use crate::config::Scope;
use crate::config::parts::Parts;
use crate::module::Content;
use crate::module::levels::{LocationWritten, Part, Sharing};
use crate::module::list;
use crate::module::sharing;
use crate::modules;
use crate::modules::rewrite;
use forebay_conf::error::Error;
use forebay_conf::tree::{Block, Directive, Place, Unit};
use forebay_core::config::Listening;
use forebay_core::config::listen::{self, ListenDirective};
use forebay_core::config::names::{self, ServerName};
use forebay_core::config::value;
use forebay_core::vars::Names;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A location under construction.
#[derive(Debug)]
pub struct LocationBuild {
    /// As written.
    pub name: Vec<u8>,
    /// Kind.
    pub kind: Kind,
    /// Place of the directive that begins the level.
    pub at: Place,
    /// Enclosing level of the server; `None`: the http level.
    pub parent: Option<LocationId>,
    /// Directives of this level.
    pub written: LocationWritten,
    /// Rewrite directives.
    pub ops: Vec<rewrite::Statement>,
    /// Content handler.
    pub content: Option<Content>,
    /// `internal`.
    pub internal: bool,
    /// `limit_except`.
    pub limit_except: Option<(Vec<Vec<u8>>, LocationId)>,
    /// `status_zone`.
    pub status_zone: Option<Arc<forebay_core::status_zone::StatusZone>>,
    /// Values that directives of modules leave for [`ConfigHooks::place`](crate::module::ConfigHooks).
    pub parts: Parts,
    /// Locations inside this one.
    pub children: Vec<LocationId>,
    /// Names of inner locations that may not occur again, with a number for the kind.
    taken: HashSet<(u8, Vec<u8>)>,
    /// Words of the directives that modules have taken so far.
    texts: Vec<(Part, sharing::Text)>,
}

impl LocationBuild {
    /// Returns `true` if a path that lacks only the final slash of the location is redirected (nginx: location).
    pub fn redirects(&self) -> bool {
        matches!(self.kind, Kind::Exact | Kind::Prefix | Kind::PrefixOnly)
            && matches!(self.name.as_slice(), [_, .., b'/'])
            && self.content.as_ref().is_some_and(|content| content.needs().upstream)
    }

    fn new(kind: Kind, name: &[u8], at: Place, parent: Option<LocationId>) -> LocationBuild {
        LocationBuild {
            name: name.to_vec(),
            kind,
            at,
            parent,
            written: LocationWritten::default(),
            ops: Vec::new(),
            content: None,
            internal: false,
            limit_except: None,
            parts: Parts::default(),
            status_zone: None,
            children: Vec::new(),
            taken: HashSet::new(),
            texts: Vec::new(),
        }
    }

    /// Adds a directive that runs in order with the rewrite directives of the level.
    pub fn add_op(&mut self, d: &Directive, op: rewrite::Op) {
        self.ops.push(rewrite::Statement { op, at: d.name.span.place() });
    }

    /// Notes a directive that a module has taken.
    fn note(&mut self, module: Part, d: &Directive) {
        let at = self.texts.iter().position(|(known, _)| *known == module).unwrap_or_else(|| {
            self.texts.push((module, Vec::new()));
            self.texts.len() - 1
        });
        sharing::append(&mut self.texts[at].1, d);
    }

    /// Shares what has been read with other levels.
    fn share(&mut self, sharing: &mut Sharing) {
        for (module, text) in std::mem::take(&mut self.texts) {
            self.written.share(module, text, sharing);
        }
    }
}

/// Directives that the builder takes itself.
#[cfg(any(test, feature = "testing"))]
pub const DIRECTIVES: &[&str] =
    &["server", "listen", "server_name", "route", "location", "if", "limit_except"];

pub(super) struct ServerBuild {
    /// Its levels. The first is the level of the server itself, and parents come before their children.
    pub(super) locations: Vec<LocationBuild>,
    pub(super) written: modules::server::Written,
    pub(super) names: Vec<ServerName>,
    pub(super) listens: Vec<ListenDirective>,
    /// `connection_pool_size`, bytes.
    pub(super) pool: Option<u64>,
    pub(super) named: HashMap<Vec<u8>, LocationId>,
    /// `route`s, in file order.
    pub(super) routes: Vec<modules::route::Written>,
    /// Position of the directive in the file.
    pub(super) ordinal: u32,
}

impl ServerBuild {
    /// Starts a server at its directive.
    fn new(d: &Directive) -> ServerBuild {
        ServerBuild {
            locations: vec![LocationBuild::new(Kind::Server, b"", d.name.span.place(), None)],
            written: Default::default(),
            names: Vec::new(),
            listens: Vec::new(),
            pool: None,
            named: HashMap::new(),
            routes: Vec::new(),
            ordinal: d.ordinal,
        }
    }

    /// Adds a level that a directive begins.
    fn add(&mut self, d: &Directive, kind: Kind, name: &[u8], parent: LocationId) -> LocationId {
        self.locations.push(LocationBuild::new(kind, name, d.name.span.place(), Some(parent)));
        self.locations.len() - 1
    }

    /// Returns the names and addresses.
    pub(super) fn listening(&self) -> Listening<'_> {
        Listening { names: &self.names, listens: &self.listens, ordinal: self.ordinal }
    }
}

/// Builds the http level.
pub struct Builder<'s, 'f> {
    /// Shared state.
    pub cx: &'s mut Scope<'f>,
    /// The http level.
    pub(super) level: LocationBuild,
    pub(super) http_server: modules::server::Written,
    /// `connection_pool_size`, bytes.
    pub(super) pool: Option<u64>,
    pub(super) servers: Vec<Slot>,
    pub(super) units: Vec<UnitBuild>,
    /// Memory of the former configuration.
    pub(super) former: Option<Arc<Memory>>,
    /// Number of this build.
    serial: u64,
    pub(super) sharing: Sharing,
}

impl<'s, 'f> Builder<'s, 'f> {
    /// Starts with the http level.
    pub fn new(cx: &'s mut Scope<'f>, former: Option<Arc<Memory>>) -> Self {
        Builder {
            cx,
            level: LocationBuild::new(Kind::Http, b"", Place::default(), None),
            http_server: Default::default(),
            pool: None,
            servers: Vec::new(),
            units: Vec::new(),
            former,
            serial: forebay_sys::serial::next(),
            sharing: Sharing::default(),
        }
    }

    /// Reads the http block. Leaves out directives with errors and keeps the errors, so that all are reported at once.
    pub fn http_block(&mut self, block: &Block) {
        // The directive holds for the whole block, wherever it stands.
        for d in block.iter().filter(|d| d.name.text == b"upstream_start_unresolved") {
            self.cx.tables.upstreams.start_unresolved = value::first(d).eq_ignore_ascii_case(b"on");
        }
        self.items(&block.items);
    }

    /// Reads directives of the http level. Directives of an included file are read in the place of the include.
    fn items(&mut self, items: &[Directive]) {
        for d in items {
            match &d.block {
                _ if d.unit.is_some() => self.unit(d),
                Some(block) if d.name.text == b"include" => self.items(&block.items),
                _ => {
                    let taken = self.http_directive(d);
                    self.keep(taken);
                }
            }
        }
    }

    /// Reads a unit, or takes it over.
    fn unit(&mut self, d: &Directive) {
        if d.unit == Some(Unit::Kept) {
            d.args.iter().for_each(|w| self.keep_unit(&w.text, d.ordinal));
            return;
        }
        let path = value::first(d);
        let (reads, unclean) = match &mut self.cx.again {
            Some(again) => (again.units.remove(path).flatten(), again.unclean.contains(path)),
            None => (None, true),
        };
        let items = d.block.as_ref().map(|block| block.items.as_slice()).unwrap_or_default();
        let of_unit = |d: &Directive| matches!(d.name.text.as_slice(), b"server" | b"upstream");
        let is_unit = d.block.iter().flatten().all(of_unit);
        match (d.unit, reads) {
            (Some(Unit::Read { clean }), Some(reads)) if is_unit => {
                let (first, outer) = (self.servers.len(), self.begin_step());
                self.cx.files.note_reads(reads);
                self.items(items);
                let effects = self.end_step(outer);
                let servers = first..self.servers.len();
                let new = self.servers.get(servers.clone()).unwrap_or_default();
                let repeatable = new.iter().all(|slot| match slot {
                    Slot::New(built) => units::are_repeatable(&built.locations),
                    Slot::Kept { .. } => false,
                });
                let all = &self.cx.tables.upstreams.all;
                let group = |d: &Directive| all.defined(&value::first(d).to_ascii_lowercase());
                let groups = d.block.iter().flatten().filter(|d| d.name.text == b"upstream");
                let state = State::Read {
                    upstreams: groups.filter_map(group).collect(),
                    effects: effects.filter(|_| clean && !unclean && repeatable).map(Box::new),
                    certificates: Vec::new(),
                };
                self.units.push(UnitBuild { path: path.into(), servers, state });
            }
            (_, reads) => {
                self.cx.files.note_reads(reads.unwrap_or_default());
                self.items(items);
            }
        }
    }

    /// Begins to note the effects of reading. Returns a mark that shows later whether there were effects that cannot be noted.
    fn begin_step(&mut self) -> usize {
        self.cx.begin_part();
        self.cx.vars.begin_uses();
        self.cx.tables.upstreams.all.begin_uses();
        self.cx.tables.unrepeatable
    }

    /// Returns the effects since the beginning, or `None` if some of them cannot be repeated.
    fn end_step(&mut self, asked: usize) -> Option<UnitEffects> {
        let (vars, groups) = (self.cx.vars.end_uses(), self.cx.tables.upstreams.all.end_uses());
        let build = self.cx.end_part()?;
        (asked == self.cx.tables.unrepeatable).then_some(UnitEffects { build, vars, groups })
    }

    /// Takes a unit over from the former configuration.
    fn keep_unit(&mut self, path: &[u8], ordinal: u32) {
        let known = self.former.as_ref().and_then(|former| former.units.get_key_value(path));
        let known = known.map(|(path, unit)| (path.clone(), unit.clone()));
        // A file that two directives include is no unit, so a second use does not fit.
        let once = known.as_ref().is_some_and(|(_, unit)| unit.is_first_use(self.serial));
        let repeated = once && known.as_ref().is_some_and(|(_, unit)| self.repeat(unit));
        let Some((path, unit)) = known.filter(|_| repeated) else {
            if let Some(again) = &mut self.cx.again {
                again.misfit = true;
            }
            return;
        };
        let first = self.servers.len();
        let slots = (0..unit.servers.len()).map(|at| Slot::Kept { unit: unit.clone(), at, ordinal });
        self.servers.extend(slots);
        let servers = first..self.servers.len();
        self.units.push(UnitBuild { path, servers, state: State::Kept(unit) });
    }

    /// Repeats the effects of reading a unit. Returns `false` if they do not fit.
    fn repeat(&mut self, unit: &units::Unit) -> bool {
        let groups = &mut self.cx.tables.upstreams.all;
        let kept = unit.upstreams.iter().all(|upstream| groups.keep(upstream.clone()).is_ok());
        groups.use_again(&unit.effects.groups);
        kept && self.cx.vars.use_again(&unit.effects.vars).is_ok() && self.cx.repeat(&unit.effects.build)
    }

    fn http_directive(&mut self, d: &Directive) -> Result<(), Error> {
        match d.name.text.as_slice() {
            b"server" => self.server_block(d),
            b"connection_pool_size" => self.pool = forebay_conf::units::size(value::first(d)),
            _ => return self.http_or_location_directive(d),
        }
        Ok(())
    }

    fn http_or_location_directive(&mut self, d: &Directive) -> Result<(), Error> {
        if self.http_server.set(d, self.cx)? || list::http_directive(d, self.cx)? {
            return Ok(());
        }
        location_directive(d, &mut self.level, self.cx)
    }

    fn keep(&mut self, taken: Result<(), Error>) {
        self.cx.keep(taken);
    }

    fn server_block(&mut self, d: &Directive) {
        let mut s = ServerBuild::new(d);
        for d in d.block.iter().flatten() {
            let taken = self.server_directive(d, &mut s);
            self.keep(taken);
        }
        s.locations[ROOT].share(&mut self.sharing);
        if s.listens.is_empty() {
            s.listens.push(ListenDirective::default_port());
        }
        // nginx gives the empty name to a server without server_name.
        if s.names.is_empty() {
            s.names.push(ServerName::Exact(Vec::new()));
        }
        self.servers.push(Slot::New(Box::new(s)));
    }

    fn server_directive(&mut self, d: &Directive, s: &mut ServerBuild) -> Result<(), Error> {
        match d.name.text.as_slice() {
            b"listen" => s.listens.push(listen::parse(&listen::HTTP, d, self.cx)?),
            b"server_name" => return names::parse(d, self.cx, &mut s.names),
            b"route" => s.routes.push(modules::route::Written::parse(d, self.cx)?),
            b"connection_pool_size" => s.pool = forebay_conf::units::size(value::first(d)),
            _ if s.written.set(d, self.cx)? => {}
            _ => return self.server_or_location_directive(d, 0, s),
        }
        Ok(())
    }

    fn server_or_location_directive(
        &mut self,
        d: &Directive,
        at: LocationId,
        s: &mut ServerBuild,
    ) -> Result<(), Error> {
        match d.name.text.as_slice() {
            b"location" => self.location_block(d, at, s),
            b"if" => self.if_block(d, at, s),
            b"limit_except" => self.limit_except(d, at, s),
            _ => location_directive(d, &mut s.locations[at], self.cx),
        }
    }

    fn if_block(&mut self, d: &Directive, at: LocationId, s: &mut ServerBuild) -> Result<(), Error> {
        let cond = rewrite::condition(d, self.cx)?;
        let level = s.add(d, Kind::If, b"", at);
        self.body(d, level, s);
        // The rewrite directives of an `if` run in order with the directives around it.
        let ops = std::mem::take(&mut s.locations[level].ops);
        let op = rewrite::Op::If { cond, location: Some(level), ops };
        s.locations[at].add_op(d, op);
        Ok(())
    }

    fn limit_except(&mut self, d: &Directive, at: LocationId, s: &mut ServerBuild) -> Result<(), Error> {
        // nginx takes the names of methods in any case here.
        let methods = d.args.iter().map(|w| w.text.to_ascii_uppercase()).collect::<Vec<_>>();
        let known = |m: &[u8]| modules::core::KNOWN_METHODS.contains(&m);
        if let Some((w, _)) = d.args.iter().zip(&methods).find(|(_, m)| !known(m)) {
            return Err(self.cx.error(d, format!("invalid method \"{}\"", w.as_str())));
        }
        if s.locations[at].limit_except.is_some() {
            return Err(self.cx.error(d, "\"limit_except\" directive is duplicate"));
        }
        let level = s.add(d, Kind::LimitExcept, b"", at);
        self.body(d, level, s);
        s.locations[at].limit_except = Some((methods, level));
        Ok(())
    }

    fn body(&mut self, d: &Directive, level: LocationId, s: &mut ServerBuild) {
        for inner in d.block.iter().flatten() {
            let taken = self.server_or_location_directive(inner, level, s);
            self.keep(taken);
        }
        s.locations[level].share(&mut self.sharing);
    }

    fn location_block(&mut self, d: &Directive, at: LocationId, s: &mut ServerBuild) -> Result<(), Error> {
        let (kind, name) = location_kind(d, self.cx)?;
        self.check_nesting(d, &s.locations[at], &kind, &name)?;
        // As in nginx, two locations may have the same regular expression, and the first of them answers.
        let once = match &kind {
            Kind::Exact => Some(0),
            Kind::Prefix | Kind::PrefixOnly => Some(1),
            Kind::Named => Some(2),
            _ => None,
        };
        if once.is_some_and(|number| !s.locations[at].taken.insert((number, name.clone()))) {
            return Err(self
                .cx
                .error(d, format!("duplicate location \"{}\"", String::from_utf8_lossy(&name))));
        }
        let named = matches!(kind, Kind::Named);
        let level = s.add(d, kind, &name, at);
        s.locations[at].children.push(level);
        if named {
            s.named.insert(name, level);
        }
        self.body(d, level, s);
        Ok(())
    }

    fn check_nesting(
        &self,
        d: &Directive,
        parent: &LocationBuild,
        kind: &Kind,
        name: &[u8],
    ) -> Result<(), Error> {
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let (own, outer) = (text(name), text(&parent.name));
        let message = match (&parent.kind, kind) {
            (Kind::Server, _) => return Ok(()),
            (Kind::Exact, _) => format!("location \"{own}\" cannot be inside the exact location \"{outer}\""),
            (Kind::Named, _) => format!("location \"{own}\" cannot be inside the named location \"{outer}\""),
            (_, Kind::Named) => format!("named location \"{own}\" can be on the server level only"),
            // A variable may be true for any path.
            (_, Kind::Regex(_) | Kind::Predicate(_)) => return Ok(()),
            (Kind::Prefix | Kind::PrefixOnly, _) if !name.starts_with(&parent.name) => {
                format!("location \"{own}\" is outside location \"{outer}\"")
            }
            (Kind::Regex(_), _) => format!("location \"{own}\" is outside location \"{outer}\""),
            _ => return Ok(()),
        };
        Err(self.cx.error(d, message))
    }
}

/// Reads a directive of a level that opens none.
fn location_directive(d: &Directive, level: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<(), Error> {
    if let Some(module) = level.written.set(d, cx)? {
        level.note(module, d);
        return check(d, level, cx);
    }
    // The grammar table may accept a directive that no module takes, because it is a hint or needs no code.
    list::location_directive(d, level, cx).map(drop)
}

/// Has all modules check a directive of a level that has just been read.
fn check(d: &Directive, level: &LocationBuild, cx: &Scope<'_>) -> Result<(), Error> {
    let mut checks = list::all().iter().filter_map(|module| module.config.check_directive);
    checks.try_for_each(|check| check(d, level, cx))
}

/// Reads kind and name of a location.
fn location_kind(d: &Directive, cx: &mut Scope<'_>) -> Result<(Kind, Vec<u8>), Error> {
    let (modifier, name) = modifier_and_name(d);
    refuse_conditions(d, modifier, name, cx)?;
    let kind = match (modifier, name.strip_prefix(b"$")) {
        (Some(m), _) => kind_of_modifier(d, m, name, cx)?,
        (None, Some(var)) => predicate(d, var, cx)?,
        (None, None) if name.starts_with(b"@") => Kind::Named,
        (None, None) => Kind::Prefix,
    };
    Ok((kind, name.to_vec()))
}

/// Reads the name of the variable that decides on a location. Nothing may come after it, since such a text would be true for every
/// request.
fn predicate(d: &Directive, name: &[u8], cx: &mut Scope<'_>) -> Result<Kind, Error> {
    let is_name = name.first().is_some_and(|b| !b.is_ascii_digit())
        && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
    if is_name {
        return Ok(Kind::Predicate(cx.vars.reference(name)));
    }
    let error = cx.error(d, format!("invalid variable name \"${}\"", String::from_utf8_lossy(name)));
    let hint = "one variable decides on a location; a \"map\" makes one of several, or of other conditions";
    Err(Error { hint: Some(hint.into()), ..error })
}

/// Refuses a variable behind a modifier, and the negation of anything. As a path or a pattern it would match nothing, and everything that
/// the location forbids would be open.
fn refuse_conditions(
    d: &Directive,
    modifier: Option<&[u8]>,
    name: &[u8],
    cx: &mut Scope<'_>,
) -> Result<(), Error> {
    let is_pattern = matches!(modifier, Some(b"~" | b"~*"));
    let is_condition = match name {
        [b'$', next, ..] => modifier.is_some() && (next.is_ascii_alphabetic() || matches!(next, b'_' | b'{')),
        [b'!', ..] => !is_pattern,
        _ => false,
    };
    if !is_condition {
        return Ok(());
    }
    let text = String::from_utf8_lossy(name);
    let error = cx.error(d, format!("location \"{text}\" has a condition that a location cannot have"));
    let hint =
        "a location takes one variable and no modifier; a \"map\" makes the variable of other conditions";
    Err(Error { hint: Some(hint.into()), ..error })
}

fn kind_of_modifier(d: &Directive, m: &[u8], name: &[u8], cx: &mut Scope<'_>) -> Result<Kind, Error> {
    match m {
        b"=" => Ok(Kind::Exact),
        b"^~" => Ok(Kind::PrefixOnly),
        b"~" | b"~*" => Ok(Kind::Regex(cx.pattern(d, name, m == b"~*")?)),
        _ => Err(cx.error(d, format!("invalid location modifier \"{}\"", String::from_utf8_lossy(m)))),
    }
}

fn modifier_and_name(d: &Directive) -> (Option<&[u8]>, &[u8]) {
    match d.args.as_slice() {
        [modifier, name, ..] => (Some(modifier.text.as_slice()), name.text.as_slice()),
        _ => glued_modifier(value::first(d)),
    }
}

/// Divides a word into a modifier, if it begins with one, and the name of the location after it.
fn glued_modifier(word: &[u8]) -> (Option<&[u8]>, &[u8]) {
    // `~*` comes before `~`, with which it begins.
    let modifiers: [&[u8]; 4] = [b"=", b"^~", b"~*", b"~"];
    match modifiers.iter().find(|m| word.starts_with(m)) {
        Some(m) => (Some(m), &word[m.len()..]),
        None => (None, word),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::error;

    #[test]
    fn a_condition_is_no_name_of_a_location() {
        for name in ["!$p", "= $p", "^~ $p", "~ $p", "~* ${p}", "~$p", "!/a"] {
            let refused = error(&format!("map $uri $p {{ }} server {{ location {name} {{ deny all; }} }}"));
            assert!(
                refused.as_ref().is_some_and(|text| text.contains("has a condition")),
                "{name}: {refused:?}"
            );
        }
        for name in ["/$p", "@a", "@$p", "~ $", "~ \\.php$", "~* (a|b)$", "= /$p/", "^~ /!", "/!a", "~ !a"] {
            assert_eq!(error(&format!("server {{ location {name} {{ }} }}")), None, "{name}");
        }
    }

    #[test]
    fn a_variable_alone_decides_on_a_location() {
        let read = |locations: &str| error(&format!("map $uri $p {{ }} server {{ {locations} }}"));
        for name in ["$p", "\"$p\"", "$P", "$arg_a", "$host"] {
            assert_eq!(read(&format!("location {name} {{ deny all; }}")), None, "{name}");
        }
        for name in ["${p}", "$p$uri", "$p/x", "$host/x", "$", "$1", "$p-", "\"$p \""] {
            let refused = read(&format!("location {name} {{ deny all; }}"));
            assert!(
                refused.as_ref().is_some_and(|text| text.contains("invalid variable name")),
                "{name}: {refused:?}"
            );
        }
        let unknown = read("location $q { deny all; }");
        assert!(unknown.as_ref().is_some_and(|text| text.contains("unknown \"q\" variable")), "{unknown:?}");
    }

    #[test]
    fn nesting_of_variables() {
        let read = |locations: &str| error(&format!("server {{ {locations} }}"));
        for inside in ["/a", "= /a", "^~ /a", "~ a", "$host"] {
            assert_eq!(read(&format!("location $arg_a {{ location {inside} {{ }} }}")), None, "{inside}");
        }
        for outside in ["/a", "^~ /a", "~ a"] {
            assert_eq!(read(&format!("location {outside} {{ location $arg_a {{ }} }}")), None, "{outside}");
        }
        for outside in ["= /a", "@a"] {
            let refused = read(&format!("location {outside} {{ location $arg_a {{ }} }}"));
            assert!(refused.as_ref().is_some_and(|text| text.contains("cannot be inside")), "{refused:?}");
        }
        assert!(read("location $arg_a { location @b { } }").is_some());
        assert_eq!(read("location $arg_a { } location $arg_a { }"), None);
    }
}
