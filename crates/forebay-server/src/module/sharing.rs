//! Sharing of settings between levels that are written alike: of ten thousand locations with the same thirty `proxy_` directives only one
//! has settings of its own. Two levels share the directives of a module if they have the same words for it. They share the settings if
//! the levels around them do so, too.

use forebay_conf::tree::Directive;
use std::collections::HashMap;
use std::sync::Arc;

/// Words of the directives of a module at a level, each with its length.
pub type Text = Vec<u8>;

/// Appends the words of a directive, and of its block if it has one (`types`).
pub fn append(text: &mut Text, d: &Directive) {
    for word in std::iter::once(&d.name).chain(&d.args) {
        text.extend((word.text.len() as u64).to_le_bytes());
        text.push(u8::from(word.quoted));
        text.extend(&word.text);
    }
    for inner in d.block.iter().flatten() {
        append(text, inner);
    }
    // No length of a word has these bytes, so they mark the end of the directive.
    text.extend([u8::MAX; 8]);
}

/// Directives and settings of one module that levels have so far. Maps with addresses as keys hold the values at these addresses, so that
/// no other values can get the same addresses.
#[derive(Debug)]
pub struct Shared<W: ?Sized, S> {
    by_text: HashMap<Text, Arc<W>>,
    /// Results of inheriting, by the addresses of the directives of a level and of the level around it. An entry has both and the result.
    inherited: HashMap<(usize, usize), [Arc<W>; 3]>,
    resolved: HashMap<usize, (Arc<W>, S)>,
}

impl<W: ?Sized, S> Default for Shared<W, S> {
    fn default() -> Self {
        Shared { by_text: HashMap::new(), inherited: HashMap::new(), resolved: HashMap::new() }
    }
}

impl<W: ?Sized, S: Clone> Shared<W, S> {
    /// Replaces the directives of a level, whose words are `text`, by the equal directives of an earlier level.
    pub fn share(&mut self, own: &mut Arc<W>, text: Text) {
        match self.by_text.get(&text) {
            Some(same) => *own = same.clone(),
            None => drop(self.by_text.insert(text, own.clone())),
        }
    }

    /// Adds the directives that a level inherits from the level around it.
    pub fn inherit(
        &mut self,
        own: &mut Arc<W>,
        outer: &Arc<W>,
        inherit: impl FnOnce(&Arc<W>, &Arc<W>) -> Arc<W>,
    ) {
        let key = (Arc::as_ptr(own).addr(), Arc::as_ptr(outer).addr());
        if let Some([_, _, made]) = self.inherited.get(&key) {
            *own = made.clone();
            return;
        }
        let before = own.clone();
        *own = inherit(&before, outer);
        self.inherited.insert(key, [before, outer.clone(), own.clone()]);
    }

    /// Returns the settings of directives.
    pub fn resolve(&mut self, written: &Arc<W>, resolve: impl FnOnce(&W) -> S) -> S {
        let resolved = self.resolved.entry(Arc::as_ptr(written).addr());
        resolved.or_insert_with(|| (written.clone(), resolve(written))).1.clone()
    }
}
