//! Coverage of a configuration: the lines whose blocks a request went through.

use crate::observe::Observed;
use crate::requests::Ask;
use crate::requests::from_conf::PASSES;
use forebay_conf::tree::FileId;
use forebay_copy::patch::{Source, View};
use std::collections::{BTreeMap, BTreeSet};

/// A block that no request went through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreached {
    /// Its place, `FILE:LINE`.
    pub(crate) place: String,
    /// Its words.
    pub(crate) block: String,
    /// Lines in it that nothing else reached.
    pub(crate) lines: usize,
    /// The reason.
    pub(crate) why: String,
}

/// Coverage of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Lines with a directive.
    pub(crate) lines: usize,
    /// Those that were reached.
    pub(crate) reached: usize,
    /// The blocks around the others.
    pub(crate) unreached: Vec<Unreached>,
}

type Line = (FileId, u32);

struct Counter<'a> {
    source: &'a Source,
    view: View<'a>,
    http: Option<usize>,
    /// Blocks that requests went through.
    passed: BTreeSet<usize>,
    /// By the node that requests were made for: their number, and where most of them went instead.
    aimed: BTreeMap<usize, BTreeMap<Option<usize>, usize>>,
}

/// Returns the coverage of a configuration by the requests of a pass.
pub(crate) fn of(source: &Source, asks: &[Ask], observed: &Observed) -> Coverage {
    let view = source.view();
    let http = view.child(None, "http");
    let passed = observed.blocks.values().flatten().copied().collect();
    let mut aimed: BTreeMap<usize, BTreeMap<Option<usize>, usize>> = BTreeMap::new();
    for (at, blocks) in &observed.blocks {
        if let Some(aim) = asks.get(*at).and_then(|a| a.aim) {
            *aimed.entry(aim).or_default().entry(blocks.last().copied()).or_default() += 1;
        }
    }
    Counter { source, view, http, passed, aimed }.count()
}

impl Counter<'_> {
    fn count(&self) -> Coverage {
        let mut lines: BTreeMap<Line, bool> = BTreeMap::new();
        let mut missing: BTreeMap<usize, BTreeSet<Line>> = BTreeMap::new();
        for (n, node) in self.view.nodes.iter().enumerate() {
            let line = (node.d.name.span.file, node.d.name.span.line);
            let around = self.unreached_around(n);
            *lines.entry(line).or_default() |= around.is_none();
            if let Some(block) = around {
                missing.entry(block).or_default().insert(line);
            }
        }
        let reached = lines.values().filter(|r| **r).count();
        let unreached = missing.iter().filter_map(|(block, inside)| {
            let left = inside.iter().filter(|l| lines.get(l) == Some(&false)).count();
            (left > 0).then(|| self.unreached(*block, left))
        });
        Coverage { lines: lines.len(), reached, unreached: unreached.collect() }
    }

    /// Returns the block around a directive, or itself, that no request went through.
    fn unreached_around(&self, n: usize) -> Option<usize> {
        let mut at = Some(n);
        while let Some(block) = at {
            let parent = self.view.nodes.get(block).and_then(|n| n.parent);
            let has_block = self.view.nodes.get(block).is_some_and(|n| n.d.block.is_some());
            match self.view.name(block) {
                "server"
                    if has_block
                        && (parent == self.http || parent.is_some_and(|p| self.view.name(p) == "stream")) =>
                {
                    return (!self.passed.contains(&block)).then_some(block);
                }
                "location" | "if" => return (!self.passed.contains(&block)).then_some(block),
                "upstream" => return (!self.is_used(block)).then_some(block),
                _ => at = parent,
            }
        }
        (self.passed.is_empty() && self.http.is_some_and(|h| n == h || self.view.within(n, h)))
            .then_some(self.http?)
    }

    /// Returns `true` if a block that a request went through passes requests on to an upstream.
    fn is_used(&self, upstream: usize) -> bool {
        let name = self.view.args(upstream).first().cloned().unwrap_or_default();
        let leads = |n: usize| {
            let target = self.view.args(n).first().cloned().unwrap_or_default();
            let host = target.split_once("://").map_or(target.as_str(), |(_, t)| t);
            let host = host.split('/').next().unwrap_or_default();
            let around = self.view.nodes.get(n).and_then(|n| n.parent);
            (host == name || host.starts_with('$')) && around.is_some_and(|a| self.passed.contains(&a))
        };
        PASSES.iter().any(|pass| self.view.all(pass).any(leads))
    }

    fn unreached(&self, block: usize, lines: usize) -> Unreached {
        let mut words = vec![self.view.name(block).to_owned()];
        words.extend(self.view.args(block));
        Unreached {
            place: place(self.source, &self.view, block),
            block: words.join(" "),
            lines,
            why: self.why(block),
        }
    }

    fn why(&self, block: usize) -> String {
        let args = self.view.args(block);
        let parent = self.view.nodes.get(block).and_then(|n| n.parent);
        let outer = parent.filter(|p| matches!(self.view.name(*p), "server" | "location"));
        if let Some(outer) = outer.filter(|p| !self.passed.contains(p)) {
            return format!(
                "nothing reached the block around it ({})",
                place(self.source, &self.view, outer)
            );
        }
        let internal = self.view.child(Some(block), "internal").is_some();
        if let Some(instead) = self.instead(block).filter(|_| !internal) {
            return instead;
        }
        match self.view.name(block) {
            "upstream" => "no location that was reached passes requests on to it".into(),
            "server" => "it has no address over TCP, or no name that a request could have".into(),
            "if" => format!("no request could be made that meets {}", args.join(" ")),
            _ if args.first().is_some_and(|a| a.starts_with('@')) => "nothing led to it".into(),
            _ if internal => "it is internal, and nothing led to it".into(),
            _ => "no request could be made from its pattern".into(),
        }
    }

    /// Returns what answered the requests that were made for a block.
    fn instead(&self, block: usize) -> Option<String> {
        let aimed = self.aimed.get(&block)?;
        let all: usize = aimed.values().sum();
        let (last, _) = aimed.iter().max_by_key(|(_, n)| **n)?;
        let requests = if all == 1 { "1 request".into() } else { format!("{all} requests") };
        Some(match last {
            Some(n) => {
                let mut words = vec![self.view.name(*n).to_owned()];
                words.extend(self.view.args(*n));
                let at = place(self.source, &self.view, *n);
                format!("{requests} made for it ended in {} ({at})", words.join(" "))
            }
            None => format!("{requests} made for it were refused before any block"),
        })
    }
}

/// Returns the place of a directive, `FILE:LINE`.
pub(crate) fn place(source: &Source, view: &View<'_>, n: usize) -> String {
    let Some(span) = view.nodes.get(n).map(|n| n.d.name.span) else { return String::new() };
    let path = source
        .files
        .iter()
        .find(|(id, _, _)| *id == span.file)
        .map(|(_, path, _)| path.display().to_string());
    format!("{}:{}", path.unwrap_or_default(), span.line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_count_by_their_blocks() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("nginx.conf");
        let text = "events {}\nhttp {\nserver {\nlisten 80;\nlocation / {\nroot /x;\n}\nlocation @a {\nroot /y;\n}\n}\n}\n";
        std::fs::write(&path, text).expect("written");
        let source = Source::read(&path).expect("parses");
        let view = source.view();
        let server = view.all("server").next().expect("a server");
        let location = view.all("location").next().expect("a location");
        let mut observed = Observed::default();
        observed.blocks.insert(0, vec![server, location]);
        let coverage = of(&source, &[Ask::default()], &observed);
        assert_eq!((coverage.lines, coverage.reached), (8, 6), "{coverage:?}");
        assert_eq!((coverage.unreached.len(), coverage.unreached[0].why.as_str()), (1, "nothing led to it"));
        assert!(coverage.unreached[0].place.ends_with("nginx.conf:8"));
        let nothing = of(&source, &[], &Observed::default());
        assert_eq!(nothing.reached, 1, "events alone: {nothing:?}");
    }
}
