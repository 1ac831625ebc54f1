//! The configuration as the rules see it: directives with the blocks around them.

use forebay_conf::tree::{Block, Directive, FileId, Span, Tree};
use forebay_core::pattern::{Pattern, matcher};
use std::cell::RefCell;
use std::collections::HashMap;

/// A directive and its place.
pub struct Node<'t> {
    /// The directive.
    pub d: &'t Directive,
    /// Its block; `None` at the top.
    pub parent: Option<usize>,
    /// Directives of its own block.
    pub children: Vec<usize>,
}

/// All directives in reading order, includes in their places.
pub struct Scene<'t> {
    /// Nodes; a parent comes before its children.
    pub nodes: Vec<Node<'t>>,
    top: Vec<usize>,
    is_partial: bool,
    patterns: RefCell<Patterns>,
    /// Directives by the places of their words.
    places: HashMap<(FileId, u32), usize>,
    /// Directives by their names, in reading order: rules look for names inside of loops.
    names: HashMap<&'t [u8], Vec<usize>>,
}

/// Patterns by their text and whether case counts; `None` for those that do not compile.
type Patterns = HashMap<(Vec<u8>, bool), Option<Pattern>>;

impl<'t> Scene<'t> {
    /// Prepares a tree.
    pub fn new(tree: &'t Tree) -> Scene<'t> {
        let mut scene = Scene {
            nodes: Vec::new(),
            top: Vec::new(),
            is_partial: false,
            patterns: RefCell::default(),
            places: HashMap::new(),
            names: HashMap::new(),
        };
        scene.top = scene.add(&tree.root, None);
        scene
    }

    fn add(&mut self, block: &'t Block, parent: Option<usize>) -> Vec<usize> {
        let mut here = Vec::new();
        let is_empty = |d: &Directive| d.block.as_ref().is_none_or(|b| b.items.is_empty());
        self.is_partial |= block.items.iter().any(|d| d.name.text == b"include" && is_empty(d));
        for d in block.iter() {
            let n = self.nodes.len();
            self.nodes.push(Node { d, parent, children: Vec::new() });
            here.push(n);
            self.names.entry(&d.name.text).or_default().push(n);
            let words = std::iter::once(&d.name).chain(&d.args);
            self.places.extend(words.map(|w| ((w.span.file, w.span.start), n)));
            // Blocks of data (`map`, `types`) hold no directives.
            let data = d.holds_data() || d.name.text == b"include";
            if let Some(b) = d.block.as_ref().filter(|_| !data) {
                let children = self.add(b, Some(n));
                self.nodes[n].children = children;
            }
        }
        here
    }

    /// Says that the tree is a part of a configuration, whose other parts are not known.
    pub fn set_partial(&mut self) {
        self.is_partial = true;
    }

    /// Returns `true` if an include brought nothing: parts of the configuration may be elsewhere.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns a compiled pattern; each is compiled once. `None` if it does not compile.
    pub(crate) fn pattern(&self, text: &str, caseless: bool) -> Option<Pattern> {
        let key = (text.as_bytes().to_vec(), caseless);
        let mut known = self.patterns.borrow_mut();
        known.entry(key).or_insert_with(|| matcher(text.as_bytes(), caseless)).clone()
    }

    /// Returns the directives of this name, anywhere.
    pub fn all<'s>(&'s self, name: &str) -> impl Iterator<Item = usize> + use<'s, 't> {
        self.names.get(name.as_bytes()).into_iter().flatten().copied()
    }

    /// Returns `true` if a directive has this name.
    pub fn is(&self, n: usize, name: &str) -> bool {
        self.nodes.get(n).is_some_and(|n| n.d.name.text == name.as_bytes())
    }

    /// Returns an argument as text; empty if there is none.
    pub fn arg(&self, n: usize, i: usize) -> String {
        self.nodes.get(n).and_then(|n| n.d.args.get(i)).map(|w| w.as_str().into_owned()).unwrap_or_default()
    }

    /// Returns all arguments as text.
    pub fn args(&self, n: usize) -> Vec<String> {
        self.nodes
            .get(n)
            .map(|n| n.d.args.iter().map(|w| w.as_str().into_owned()).collect())
            .unwrap_or_default()
    }

    /// Returns the place of a directive's name.
    pub fn span(&self, n: usize) -> Span {
        self.nodes.get(n).map(|n| n.d.name.span).unwrap_or_default()
    }

    /// Returns the place of an argument.
    pub fn arg_span(&self, n: usize, i: usize) -> Span {
        self.nodes.get(n).and_then(|n| n.d.args.get(i)).map_or_else(|| self.span(n), |w| w.span)
    }

    /// Returns the first directive of this name right in a block.
    pub fn child(&self, block: Option<usize>, name: &str) -> Option<usize> {
        let (level, named) = (self.level(block), self.names.get(name.as_bytes())?);
        // The block http may have thousands of servers, and a name thousands of places.
        if level.len() < named.len() {
            level.iter().copied().find(|n| self.is(*n, name))
        } else {
            named.iter().copied().find(|n| self.parent(*n) == block)
        }
    }

    /// Returns the directives of a block itself.
    pub fn level(&self, block: Option<usize>) -> &[usize] {
        match block {
            Some(b) => self.nodes.get(b).map(|n| n.children.as_slice()).unwrap_or_default(),
            None => &self.top,
        }
    }

    /// Returns the directive of this name in effect in a block: its own, or the one of the blocks around it.
    pub fn effective(&self, block: Option<usize>, name: &str) -> Option<usize> {
        let mut at = block;
        loop {
            if let Some(n) = self.child(at, name) {
                return Some(n);
            }
            at = self.nodes.get(at?)?.parent;
        }
    }

    /// Returns the block of a directive.
    pub fn parent(&self, n: usize) -> Option<usize> {
        self.nodes.get(n).and_then(|n| n.parent)
    }

    /// Returns the innermost block of this name around a directive.
    pub fn around(&self, n: usize, name: &str) -> Option<usize> {
        let mut at = self.parent(n);
        while let Some(b) = at {
            if self.is(b, name) {
                return Some(b);
            }
            at = self.parent(b);
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
}
