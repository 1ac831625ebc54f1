//! Sharing of settings between levels that are written alike: of ten thousand locations with the same thirty `proxy_` directives
//! only one has settings of its own. Two levels share the directives of a module if they have the same words of it, and the
//! settings if the levels around them share theirs, too.

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
    // The length of a word never has these bytes: the directive ends.
    text.extend([u8::MAX; 8]);
}

/// Directives and settings of one module that levels have so far. Those in the keys by address are held, so that no others get
/// their address.
#[derive(Debug)]
pub struct Shared<W: ?Sized, S: ?Sized> {
    by_text: HashMap<Text, Arc<W>>,
    /// By the addresses of the directives of a level and of the level around it: both, and what the level has in effect.
    inherited: HashMap<(usize, usize), [Arc<W>; 3]>,
    resolved: HashMap<usize, (Arc<W>, Arc<S>)>,
}

impl<W: ?Sized, S: ?Sized> Default for Shared<W, S> {
    fn default() -> Self {
        Shared { by_text: HashMap::new(), inherited: HashMap::new(), resolved: HashMap::new() }
    }
}

impl<W: ?Sized, S: ?Sized> Shared<W, S> {
    /// Replaces the directives of a level, whose words are `text`, by equal ones of an earlier level.
    pub fn share(&mut self, own: &mut Arc<W>, text: Text) {
        match self.by_text.get(&text) {
            Some(same) => *own = same.clone(),
            None => drop(self.by_text.insert(text, own.clone())),
        }
    }

    /// Adds to the directives of a level those that it has from the level around it.
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
    pub fn resolve(&mut self, written: &Arc<W>, resolve: impl FnOnce(&W) -> Arc<S>) -> Arc<S> {
        let resolved = self.resolved.entry(Arc::as_ptr(written).addr());
        resolved.or_insert_with(|| (written.clone(), resolve(written))).1.clone()
    }
}

#[cfg(test)]
mod tests {
    use crate::modules::{headers, proxy};
    use crate::testing::http;
    use std::sync::Arc;

    #[test]
    fn levels_that_are_written_alike_share_their_settings() {
        let location = "proxy_set_header A $host; proxy_set_header B b; proxy_read_timeout 5s; proxy_pass http://127.0.0.1:1;";
        let http = http(&format!(
            "server {{ location /a {{ {location} }} location /b {{ {location} }} location /c {{ {location} proxy_buffering off; }} }} \
             server {{ listen 81; location / {{ {location} }} }} \
             server {{ listen 82; proxy_send_timeout 9s; location / {{ {location} }} }}"
        ));
        let proxy = |server: usize, location: usize| {
            proxy::SETTINGS.of(&http.level(server, location).expect("a location").settings)
        };
        assert!(std::ptr::eq(proxy(0, 1), proxy(0, 2)) && std::ptr::eq(proxy(0, 1), proxy(1, 1)));
        assert!(!proxy(0, 3).buffering && proxy(0, 1).buffering, "one that is written otherwise has its own");
        let (own, others) = (proxy(2, 1), proxy(0, 1));
        assert_eq!(own.send_timeout.0.as_secs(), 9, "what the level around it sets counts");
        assert_eq!(others.send_timeout.0.as_secs(), 60);
        assert_eq!((own.set_header.0.len(), own.read_timeout.0.as_secs()), (2, 5));
    }

    #[test]
    fn blocks_are_told_apart() {
        let http = http(
            "server { location /a { types { a/a a; } } location /b { types { b/b a; } } location /c { types { a/a a; } } }",
        );
        let core = |n: usize| &http.level(0, n).expect("a location").settings.core;
        assert!(Arc::ptr_eq(core(1), core(3)) && !Arc::ptr_eq(core(1), core(2)));
    }

    #[test]
    fn words_are_told_apart() {
        let words = ["ab c", "a bc", "\"ab\" c", "ab c always"];
        let locations: String =
            words.iter().enumerate().map(|(n, w)| format!("location /{n} {{ add_header {w}; }}")).collect();
        let http = http(&format!("server {{ {locations} }}"));
        let names: Vec<usize> = (1..5)
            .map(|n| {
                std::ptr::from_ref(headers::SETTINGS.of(&http.level(0, n).expect("a location").settings))
                    as usize
            })
            .collect();
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }
}
