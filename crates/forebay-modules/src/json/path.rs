//! Paths into a document, `a.b[0]["c.d"]`, and a tree of those that are looked for.

use super::document::unescape;

/// Step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Member of an object.
    Member(Box<[u8]>),
    /// Element of an array, from 0.
    Element(u32),
}

/// Reads a path. `$` alone is the whole document, and may begin a path.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &[u8]) -> Result<Vec<Step>, &'static str> {
    let mut steps = Vec::new();
    let mut rest = match text {
        [b'$', after @ ..] if matches!(after, [] | [b'.' | b'[', ..]) => after,
        [b'.', ..] => return Err("it begins with a dot"),
        [b'[', ..] => text,
        // The first name has no dot before it.
        _ => {
            let (name, after) = bare(text)?;
            steps.push(name);
            after
        }
    };
    while let Some((first, after)) = rest.split_first() {
        let (step, after) = match first {
            b'.' => bare(after)?,
            b'[' => bracketed(after)?,
            _ => return Err("a dot or a bracket is missing"),
        };
        steps.push(step);
        rest = after;
    }
    Ok(steps)
}

/// Reads a name without quotes.
fn bare(text: &[u8]) -> Result<(Step, &[u8]), &'static str> {
    let len = text.iter().position(|b| matches!(b, b'.' | b'[')).unwrap_or(text.len());
    let (name, after) = text.split_at(len);
    match name {
        [] => Err("a name is empty; write [\"\"] for one that is"),
        _ if name.iter().any(|b| matches!(b, b']' | b'"')) => Err("a name with such signs needs [\"...\"]"),
        _ => Ok((Step::Member(name.into()), after)),
    }
}

/// Reads an index or a name in quotes, after the bracket.
fn bracketed(text: &[u8]) -> Result<(Step, &[u8]), &'static str> {
    if let Some(quoted) = text.strip_prefix(b"\"") {
        let mut escaped = false;
        let end = quoted.iter().position(|b| {
            let ends = *b == b'"' && !escaped;
            escaped = *b == b'\\' && !escaped;
            ends
        });
        let (name, after) = quoted.split_at(end.ok_or("a quote is not closed")?);
        let after = after.strip_prefix(b"\"]").ok_or("a bracket is not closed")?;
        let mut plain = Vec::new();
        unescape(name, &mut plain).map_err(|_| "a name in quotes has an invalid escape")?;
        return Ok((Step::Member(plain.into()), after));
    }
    let len = text.iter().position(|b| *b == b']').ok_or("a bracket is not closed")?;
    let (digits, after) = text.split_at(len);
    let number = std::str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
    let number = number.and_then(|d| d.parse().ok()).ok_or("an index is no number")?;
    Ok((Step::Element(number), after.get(1..).unwrap_or_default()))
}

/// Number of a node in [`Paths`].
pub type NodeId = usize;

/// Tree of paths. The first node is the document.
#[derive(Debug)]
pub struct Paths {
    nodes: Vec<Node>,
    /// Number of paths.
    len: usize,
}

/// Place in documents.
#[derive(Debug, Default)]
struct Node {
    /// Places below, sorted.
    below: Vec<(Step, NodeId)>,
    /// Numbers of the paths that end here.
    wanted: Vec<usize>,
}

impl Default for Paths {
    fn default() -> Paths {
        Paths { nodes: vec![Node::default()], len: 0 }
    }
}

impl Paths {
    /// The document itself.
    pub const ROOT: NodeId = 0;

    /// Adds a path, whose number is the number of those before it.
    pub fn add(&mut self, steps: &[Step]) {
        let mut at = Paths::ROOT;
        for step in steps {
            let next = self.nodes.len();
            let below = &mut self.nodes[at].below;
            at = match below.binary_search_by(|(own, _)| own.cmp(step)) {
                Ok(found) => below[found].1,
                Err(place) => {
                    below.insert(place, (step.clone(), next));
                    self.nodes.push(Node::default());
                    next
                }
            };
        }
        self.nodes[at].wanted.push(self.len);
        self.len += 1;
    }

    /// Returns the number of paths.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there is no path.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the place of a member.
    pub fn member(&self, node: NodeId, name: &[u8]) -> Option<NodeId> {
        self.below(node, |own| match own {
            Step::Member(own) => (**own).cmp(name),
            Step::Element(_) => std::cmp::Ordering::Greater,
        })
    }

    /// Returns the place of an element.
    pub fn element(&self, node: NodeId, index: u32) -> Option<NodeId> {
        self.below(node, |own| match own {
            Step::Member(_) => std::cmp::Ordering::Less,
            Step::Element(own) => own.cmp(&index),
        })
    }

    fn below(&self, node: NodeId, order: impl Fn(&Step) -> std::cmp::Ordering) -> Option<NodeId> {
        let below = &self.nodes.get(node)?.below;
        let at = below.binary_search_by(|(own, _)| order(own)).ok()?;
        below.get(at).map(|(_, node)| *node)
    }

    /// Returns the paths that end at a place.
    pub fn wanted(&self, node: NodeId) -> &[usize] {
        self.nodes.get(node).map_or(&[], |node| &node.wanted)
    }

    /// Calls a function with the paths that end at a place or below it.
    pub fn each_from(&self, node: NodeId, each: &mut impl FnMut(usize)) {
        let Some(node) = self.nodes.get(node) else { return };
        node.wanted.iter().for_each(|path| each(*path));
        for (_, below) in &node.below {
            self.each_from(*below, each);
        }
    }
}
