//! The configuration as the rules see it: directives with the blocks around them.
//!
//! There are hundreds of rules, and a configuration may have tens of thousands of directives. So a rule looks up the names that it is
//! about, and nothing here goes through all directives or makes a text of one.

use crate::routes::Form;
use crate::rule::Reach;
use crate::variables::{Definitions, Mentions};
use foldhash::fast::RandomState;
use forebay_conf::error::Error;
use forebay_conf::tree::{Block, Directive, FileId, Span, Tree};
use forebay_core::pattern::{Pattern, matcher};
use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// Table in memory.
pub(crate) type Table<K, V> = HashMap<K, V, RandomState>;

/// Files that come with nginx. Their contents are known: types, and parameters for programs.
const PACKAGED: [&str; 8] = [
    "mime.types",
    "fastcgi_params",
    "fastcgi.conf",
    "uwsgi_params",
    "scgi_params",
    "koi-utf",
    "koi-win",
    "win-utf",
];

/// Returns `true` if a file comes with nginx, so that nothing unknown is in it where it is missing.
pub fn is_packaged(path: &Path) -> bool {
    path.file_name().is_some_and(|name| PACKAGED.iter().any(|known| name == *known))
}

fn is_of_a_package(include: &Directive) -> bool {
    include.args.first().is_some_and(|word| is_packaged(Path::new(&*word.as_str())))
}

/// A directive and its place.
pub struct Node<'t> {
    /// The directive.
    pub d: &'t Directive,
    /// Its block; `None` at the top.
    pub parent: Option<usize>,
    /// Directives of its own block.
    pub children: Vec<usize>,
    /// Number of its name.
    name: usize,
    /// Its arguments among the words of the scene.
    args: Range<usize>,
    /// The first directive behind its block.
    end: usize,
    /// The next directive of the same name in the same block.
    next: Option<usize>,
}

/// All directives in reading order, includes in their places.
pub struct Scene<'t> {
    /// Nodes; a parent comes before its children.
    pub nodes: Vec<Node<'t>>,
    top: Vec<usize>,
    is_partial: bool,
    /// The tree is a part of a configuration, whose outer blocks are not known.
    is_part: bool,
    /// Blocks with an include that brought nothing.
    unseen: Vec<Option<usize>>,
    /// Names of directives that the parser refused, which are not in the tree.
    refused: Vec<String>,
    /// Arguments of all directives, in reading order.
    words: Vec<Cow<'t, str>>,
    /// Numbers of names.
    names: Table<&'t [u8], usize>,
    /// Directives of each name, in reading order.
    named: Vec<Vec<usize>>,
    /// Directives of a name in a block.
    siblings: Table<(Option<usize>, usize), Siblings>,
    /// Directives by the places of their words.
    places: Table<(FileId, u32), usize>,
    patterns: RefCell<Patterns>,
    /// Locations with the forms of their arguments.
    locations: OnceCell<Table<usize, Form>>,
    definitions: OnceCell<Definitions<'t>>,
    mentions: OnceCell<Mentions<'t>>,
    groups: OnceCell<Table<&'t [u8], Vec<usize>>>,
    asked: OnceCell<Vec<usize>>,
    #[cfg(test)]
    pub(crate) looks: std::cell::Cell<usize>,
}

/// Directives of one name in one block; [`Node::next`] leads from one to the next.
struct Siblings {
    first: usize,
    last: usize,
}

/// Patterns by their text and whether case counts; `None` for those that do not compile.
type Patterns = Table<(Vec<u8>, bool), Option<Pattern>>;

impl<'t> Scene<'t> {
    /// Prepares a tree.
    pub fn new(tree: &'t Tree) -> Scene<'t> {
        let mut scene = Scene {
            nodes: Vec::new(),
            top: Vec::new(),
            is_partial: false,
            is_part: false,
            unseen: Vec::new(),
            refused: Vec::new(),
            words: Vec::new(),
            names: Table::default(),
            named: Vec::new(),
            siblings: Table::default(),
            places: Table::default(),
            patterns: RefCell::default(),
            locations: OnceCell::new(),
            definitions: OnceCell::new(),
            mentions: OnceCell::new(),
            groups: OnceCell::new(),
            asked: OnceCell::new(),
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        };
        scene.top = scene.add(&tree.root, None);
        scene
    }

    fn add(&mut self, block: &'t Block, parent: Option<usize>) -> Vec<usize> {
        let mut here = Vec::new();
        let is_empty = |d: &Directive| d.block.as_ref().is_none_or(|b| b.items.is_empty());
        let is_unseen = |d: &Directive| d.name.text == b"include" && is_empty(d) && !is_of_a_package(d);
        if block.items.iter().any(is_unseen) {
            self.is_partial = true;
            self.unseen.push(parent);
        }
        for d in block.iter() {
            let n = self.add_node(d, parent);
            here.push(n);
            // Blocks of data (`map`, `types`) hold no directives.
            let data = d.holds_data() || d.name.text == b"include";
            if let Some(b) = d.block.as_ref().filter(|_| !data) {
                let children = self.add(b, Some(n));
                self.nodes[n].children = children;
            }
            self.nodes[n].end = self.nodes.len();
        }
        here
    }

    /// Says that the tree is a part of a configuration, whose other parts are not known.
    pub fn set_partial(&mut self) {
        self.is_partial = true;
        self.is_part = true;
    }

    /// Returns `true` if a line that is in effect at a directive may stand in a file that is not seen.
    pub(crate) fn is_unseen(&self, n: usize, reach: Reach) -> bool {
        let mut at = Some(n);
        while let Some(block) = at {
            let is_outer = self.is(block, "http") || self.is(block, "stream");
            if self.unseen.contains(&at) && (reach == Reach::Anywhere || !is_outer) {
                return true;
            }
            at = self.parent(block);
        }
        reach == Reach::Anywhere && (self.is_part || self.unseen.contains(&None))
    }

    /// Tells of the errors of the parser: a directive that it does not know may be one of an older server.
    pub fn set_refused(&mut self, errors: &[Error]) {
        let name =
            |e: &Error| Some(e.message.strip_prefix("unknown directive \"")?.split('"').next()?.to_owned());
        self.refused = errors.iter().filter_map(name).collect();
    }

    /// Returns `true` if a directive of this name is in the file and was refused.
    pub(crate) fn is_refused(&self, name: &str) -> bool {
        self.refused.iter().any(|refused| refused == name)
    }

    fn add_node(&mut self, d: &'t Directive, parent: Option<usize>) -> usize {
        let n = self.nodes.len();
        let fresh = self.named.len();
        let name = *self.names.entry(&d.name.text).or_insert(fresh);
        if name == fresh {
            self.named.push(Vec::new());
        }
        self.named[name].push(n);
        let siblings = self.siblings.entry((parent, name)).or_insert(Siblings { first: n, last: n });
        let before = std::mem::replace(&mut siblings.last, n);
        if let Some(before) = self.nodes.get_mut(before) {
            before.next = Some(n);
        }
        let first = self.words.len();
        self.words.extend(d.args.iter().map(|w| w.as_str()));
        let args = first..self.words.len();
        self.nodes.push(Node { d, parent, children: Vec::new(), name, args, end: n, next: None });
        let words = std::iter::once(&d.name).chain(&d.args);
        self.places.extend(words.map(|w| ((w.span.file, w.span.start), n)));
        n
    }

    /// Returns `true` if an include brought nothing: parts of the configuration may be elsewhere.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Counts the look at a directive, by which a test holds what a configuration takes.
    #[inline]
    fn look(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }

    fn node(&self, n: usize) -> Option<&Node<'t>> {
        self.look();
        self.nodes.get(n)
    }

    /// Returns a compiled pattern; each is compiled once. `None` if it does not compile.
    pub(crate) fn pattern(&self, text: &str, caseless: bool) -> Option<Pattern> {
        let key = (text.as_bytes().to_vec(), caseless);
        let mut known = self.patterns.borrow_mut();
        known.entry(key).or_insert_with(|| matcher(text.as_bytes(), caseless)).clone()
    }

    /// Returns the directives of this name, anywhere.
    pub fn all<'s>(&'s self, name: &str) -> impl DoubleEndedIterator<Item = usize> + Clone + use<'s, 't> {
        self.of_name(name).iter().copied().inspect(|_| self.look())
    }

    fn of_name(&self, name: &str) -> &[usize] {
        self.names.get(name.as_bytes()).and_then(|id| self.named.get(*id)).map_or(&[], Vec::as_slice)
    }

    /// Returns the directives whose names fit, in reading order.
    pub(crate) fn with_name(&self, is_fit: impl Fn(&str) -> bool) -> Vec<usize> {
        let fits = self.names.iter().filter(|(name, _)| is_fit(&String::from_utf8_lossy(name)));
        let mut found: Vec<usize> =
            fits.filter_map(|(_, id)| self.named.get(*id)).flatten().copied().collect();
        found.sort_unstable();
        found
    }

    /// Returns `true` if a directive has this name.
    pub fn is(&self, n: usize, name: &str) -> bool {
        self.node(n).is_some_and(|n| n.d.name.text == name.as_bytes())
    }

    /// Returns an argument as text; empty if there is none.
    pub fn arg(&self, n: usize, i: usize) -> &str {
        self.args(n).get(i).map_or("", |word| word)
    }

    /// Returns all arguments as text.
    pub fn args(&self, n: usize) -> &[Cow<'t, str>] {
        self.node(n).and_then(|n| self.words.get(n.args.clone())).unwrap_or_default()
    }

    /// Returns all arguments as one text, with blanks between them.
    pub(crate) fn text(&self, n: usize) -> Cow<'_, str> {
        match self.args(n) {
            [] => Cow::Borrowed(""),
            [only] => Cow::Borrowed(only),
            several => Cow::Owned(several.join(" ")),
        }
    }

    /// Returns the last argument; empty if there is none.
    pub(crate) fn last_arg(&self, n: usize) -> &str {
        self.args(n).last().map_or("", |word| word)
    }

    /// Returns `true` if a directive has this word among its arguments.
    pub(crate) fn has(&self, n: usize, word: &str) -> bool {
        self.args(n).iter().any(|a| a == word)
    }

    /// Returns the place of a directive's name.
    pub fn span(&self, n: usize) -> Span {
        self.node(n).map(|n| n.d.name.span).unwrap_or_default()
    }

    /// Returns the place of an argument.
    pub fn arg_span(&self, n: usize, i: usize) -> Span {
        self.node(n).and_then(|n| n.d.args.get(i)).map_or_else(|| self.span(n), |w| w.span)
    }

    /// Returns the first directive of this name right in a block.
    pub fn child(&self, block: Option<usize>, name: &str) -> Option<usize> {
        let id = *self.names.get(name.as_bytes())?;
        self.siblings.get(&(block, id)).map(|siblings| siblings.first)
    }

    /// Returns the directives of this name right in a block.
    pub(crate) fn children<'s>(
        &'s self,
        block: Option<usize>,
        name: &str,
    ) -> impl Iterator<Item = usize> + Clone + use<'s, 't> {
        std::iter::successors(self.child(block, name), |n| self.node(*n)?.next)
    }

    /// Returns the directives of a block itself.
    pub fn level(&self, block: Option<usize>) -> &[usize] {
        match block {
            Some(b) => self.node(b).map(|n| n.children.as_slice()).unwrap_or_default(),
            None => &self.top,
        }
    }

    /// Returns all directives inside of a block, at any depth.
    pub(crate) fn inside(&self, block: usize) -> Range<usize> {
        block.saturating_add(1)..self.node(block).map_or(0, |n| n.end)
    }

    /// Returns the directives of this name inside of a block, at any depth.
    pub(crate) fn named_inside<'s>(
        &'s self,
        block: usize,
        name: &str,
    ) -> impl Iterator<Item = usize> + Clone + use<'s, 't> {
        let (all, range) = (self.of_name(name), self.inside(block));
        let first = all.partition_point(|n| *n < range.start);
        let rest = all.get(first..).unwrap_or_default().iter().copied();
        rest.take_while(move |n| *n < range.end).inspect(|_| self.look())
    }

    /// Returns `true` if a block is inside of another one, or the same.
    pub(crate) fn is_within(&self, block: usize, outer: usize) -> bool {
        block == outer || self.inside(outer).contains(&block)
    }

    /// Returns the directive of this name in effect in a block: its own, or the one of the blocks around it.
    pub fn effective(&self, block: Option<usize>, name: &str) -> Option<usize> {
        let id = *self.names.get(name.as_bytes())?;
        let mut at = block;
        loop {
            self.look();
            if let Some(siblings) = self.siblings.get(&(at, id)) {
                return Some(siblings.first);
            }
            at = self.node(at?)?.parent;
        }
    }

    /// Returns the directives of this name on the level where they are in effect for a block.
    pub(crate) fn all_effective<'s>(
        &'s self,
        block: Option<usize>,
        name: &str,
    ) -> impl Iterator<Item = usize> + Clone + use<'s, 't> {
        std::iter::successors(self.effective(block, name), |n| self.node(*n)?.next)
    }

    /// Returns the block of a directive.
    pub fn parent(&self, n: usize) -> Option<usize> {
        self.node(n).and_then(|n| n.parent)
    }

    /// Returns the innermost block of this name around a directive.
    pub fn around(&self, n: usize, name: &str) -> Option<usize> {
        let id = *self.names.get(name.as_bytes())?;
        let mut at = self.parent(n);
        while let Some(b) = at {
            let node = self.node(b)?;
            if node.name == id {
                return Some(b);
            }
            at = node.parent;
        }
        None
    }

    /// Returns the outermost block around a directive, or the directive itself if there is none.
    pub fn outermost(&self, n: usize) -> usize {
        let mut at = n;
        while let Some(outer) = self.parent(at) {
            at = outer;
        }
        at
    }

    /// Returns `true` if a flag is on in a block.
    pub fn on(&self, block: Option<usize>, name: &str) -> bool {
        self.effective(block, name).is_some_and(|n| self.arg(n, 0) == "on")
    }

    /// Returns the directive whose name or argument is at a place.
    pub fn node_at(&self, span: Span) -> Option<usize> {
        self.places.get(&(span.file, span.start)).copied()
    }

    /// Returns the form of a location; `None` for names, variables and patterns that do not compile.
    pub(crate) fn form(&self, location: usize) -> Option<&Form> {
        let of_all = || self.all("location").filter_map(|n| Some((n, Form::of(self, n)?))).collect();
        self.locations.get_or_init(of_all).get(&location)
    }

    /// Returns the directives that define variables.
    pub(crate) fn definitions(&self) -> &Definitions<'t> {
        self.definitions.get_or_init(|| Definitions::of(self))
    }

    /// Returns the directives with this text in an argument, of a variable as `$name`: other names that begin so fit as well.
    pub(crate) fn with_text<'s>(&'s self, text: &'s str) -> Box<dyn Iterator<Item = usize> + 's> {
        let is_name =
            |name: &&str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        match text.strip_prefix('$').filter(is_name) {
            Some(name) => Box::new(self.mentions.get_or_init(|| Mentions::of(self)).beginning(name)),
            None => {
                let fits = move |n: &usize| self.args(*n).iter().any(|a| a.contains(text));
                Box::new((0..self.nodes.len()).filter(fits))
            }
        }
    }

    /// Returns the first `upstream` block of this name.
    pub(crate) fn group(&self, name: &str) -> Option<usize> {
        self.groups(name).next()
    }

    /// Returns the `upstream` blocks of this name.
    pub(crate) fn groups(&self, name: &str) -> impl Iterator<Item = usize> {
        let of_all = || {
            let mut groups: Table<&[u8], Vec<usize>> = Table::default();
            for n in self.all("upstream") {
                let word = self.node(n).and_then(|n| n.d.args.first());
                groups.entry(word.map_or(&[], |w| &w.text)).or_default().push(n);
            }
            groups
        };
        self.groups.get_or_init(of_all).get(name.as_bytes()).into_iter().flatten().copied()
    }

    /// Returns the locations that `auth_request` asks.
    pub(crate) fn asked(&self) -> &[usize] {
        self.asked.get_or_init(|| crate::checks::ask::auth_locations(self))
    }
}
