//! Parameters that describe a request in FastCGI, uwsgi and SCGI (nginx: fastcgi_param, uwsgi_param, scgi_param): first
//! the parameters of the configuration, then the fields of the client as `HTTP_*`. Hot path.

use super::proxy;
use crate::modules::proxy_cache;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::{Setting, first};
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use forebay_http::field::{Classes, FieldLine, Name};
use forebay_http::h1::response;
use forebay_http::request::RequestHead;
use forebay_server::config::Scope;
use forebay_server::request::Request;
use std::collections::HashMap;
use std::sync::Arc;

/// Prefix of parameters for fields of the client.
const FIELD: &[u8] = b"HTTP_";

/// Parameter, without its prefix, that is never made of a field of the client. Programs take `HTTP_PROXY` for the proxy of their own
/// requests, which the client would choose by a field `Proxy` (CVE-2016-5385 and others). `fastcgi_param` and its like may set it.
const HTTPOXY: &[u8] = b"PROXY";

/// Lines of `fastcgi_param`, `uwsgi_param` or `scgi_param`.
#[derive(Clone, Debug, Default)]
pub struct Params(Arc<Vec<Param>>);

/// One parameter of the configuration.
#[derive(Clone, Debug)]
struct Param {
    name: Vec<u8>,
    value: Template,
    /// `true` if an empty value leaves the parameter out (nginx: `if_not_empty`).
    if_not_empty: bool,
}

impl Setting<forebay_server::config::HttpContext> for Params {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut all = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        let mut if_not_empty = false;
        if let Some(w) = d.args.get(2) {
            if w.text != b"if_not_empty" {
                return Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str())));
            }
            if_not_empty = true;
        }
        let name = first(d).to_vec();
        if let Some(w) = d.args.get(1) {
            // Like nginx: an `HTTP_*` parameter with "" is not sent, which hides the client's field from the server. One whose
            // variables are empty is sent.
            if_not_empty |= name.starts_with(FIELD) && w.text.is_empty();
            all.push(Param { name, value: cx.template(d, w)?, if_not_empty });
        }
        Ok(Params(Arc::new(all)))
    }
}

impl Params {
    /// Passes name and value of each parameter of a request to `put`. With `stored` the response goes into a cache, so
    /// `Range` and the client's conditions are left out: the cache needs the whole.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub fn each(
        &self,
        req: &mut Request,
        s: &proxy::Settings,
        stored: bool,
        mut put: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), VarError> {
        let mut value = req.take_buf();
        self.configured(req, &mut value, &mut put)?;
        value.clear();
        host(req, &mut value);
        // Programs build URLs from this parameter, so it is the host that has chosen the server, not the text of the
        // client.
        if !value.is_empty() && !self.gives(b"Host") {
            put(b"HTTP_HOST", &value);
        }
        if stored {
            self.conditions(req, &mut put);
        }
        if s.pass_request_headers {
            let mut name = req.take_buf();
            self.fields(req, stored, &mut name, &mut value, put);
            req.give_buf(name);
        }
        req.give_buf(value);
        Ok(())
    }

    /// Passes the validators of a stale entry that is being renewed.
    fn conditions(&self, req: &Request, put: &mut impl FnMut(&[u8], &[u8])) {
        let state = proxy_cache::STATE.of(req);
        if let Some(t) = state.last_modified.filter(|_| !self.gives(b"If-Modified-Since")) {
            put(b"HTTP_IF_MODIFIED_SINCE", &forebay_http::date::imf(t));
        }
        if !state.etag.is_empty() && !self.gives(b"If-None-Match") {
            put(b"HTTP_IF_NONE_MATCH", &state.etag);
        }
    }

    /// Passes the parameters of the configuration to `put`.
    fn configured(
        &self,
        req: &mut Request,
        value: &mut Vec<u8>,
        put: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<(), VarError> {
        for p in self.0.iter() {
            let text = match p.value.as_const() {
                Some(constant) => constant,
                None => {
                    value.clear();
                    p.value.eval(req, value)?;
                    value.as_slice()
                }
            };
            if !(p.if_not_empty && text.is_empty()) {
                put(&p.name, text);
            }
        }
        Ok(())
    }

    /// Returns `true` if the configuration has a parameter for a field.
    fn gives(&self, field: &[u8]) -> bool {
        self.0.iter().any(|p| p.name.strip_prefix(FIELD).is_some_and(|rest| stands_for(rest, field)))
    }

    /// Passes the fields of the client to `put`. All lines with one name become one parameter.
    fn fields(
        &self,
        req: &Request,
        stored: bool,
        name: &mut Vec<u8>,
        value: &mut Vec<u8>,
        mut put: impl FnMut(&[u8], &[u8]),
    ) {
        let h = &req.head;
        let same = Same::of(h);
        for (i, f) in h.fields.iter().enumerate() {
            let field = f.name.of(&h.buf);
            if f.id == Name::Host
                || stands_for(HTTPOXY, field)
                || stored && f.id.is(Classes::CONDITIONAL)
                || self.gives(field)
                || !same.is_first(i)
            {
                continue;
            }
            value.clear();
            value.extend_from_slice(f.value.of(&h.buf));
            // Lines of `Cookie` are joined by a semicolon (RFC 9113, section 8.2.3), all others by a comma (RFC 9110,
            // section 5.3).
            let separator: &[u8] = if f.id == Name::Cookie { b"; " } else { b", " };
            let mut at = i;
            while let Some((next, g)) = same.next(at) {
                value.extend_from_slice(separator);
                value.extend_from_slice(g.value.of(&h.buf));
                at = next;
            }
            name.clear();
            name.extend_from_slice(FIELD);
            name.extend(field.iter().map(|b| param_byte(*b)));
            put(name, value);
        }
    }
}

/// Number of fields up to which comparing every pair is cheaper than a hash map. Above it the map also prevents quadratic
/// time on heads with very many fields.
const FEW: usize = 48;

/// Finder of fields of a request that share one parameter.
struct Same<'a> {
    head: &'a RequestHead,
    /// For each line: whether it is the first of its parameter, and the index of the next one. Empty for up to [`FEW`]
    /// fields.
    chains: Vec<(bool, Option<usize>)>,
}

impl<'a> Same<'a> {
    fn of(head: &'a RequestHead) -> Same<'a> {
        let mut chains = Vec::new();
        if head.fields.len() > FEW {
            chains.resize(head.fields.len(), (true, None));
            let mut last: HashMap<Vec<u8>, usize> = HashMap::new();
            for (i, f) in head.fields.iter().enumerate() {
                let param = f.name.of(&head.buf).iter().map(|b| param_byte(*b)).collect();
                if let Some(before) = last.insert(param, i) {
                    if let Some(chain) = chains.get_mut(before) {
                        chain.1 = Some(i);
                    }
                    if let Some(chain) = chains.get_mut(i) {
                        chain.0 = false;
                    }
                }
            }
        }
        Same { head, chains }
    }

    fn has_name_of(&self, f: &FieldLine, g: &FieldLine) -> bool {
        same_param(f.name.of(&self.head.buf), g.name.of(&self.head.buf))
    }

    /// Returns `true` if a line is the first of its parameter.
    fn is_first(&self, i: usize) -> bool {
        match (self.chains.get(i), self.head.fields.get(i)) {
            (Some(chain), _) => chain.0,
            (None, Some(f)) => !self.head.fields.iter().take(i).any(|g| self.has_name_of(f, g)),
            (None, None) => true,
        }
    }

    /// Returns the next line with the same parameter.
    fn next(&self, i: usize) -> Option<(usize, &'a FieldLine)> {
        let f = self.head.fields.get(i)?;
        let at = match self.chains.get(i) {
            Some(chain) => chain.1?,
            None => i + 1 + self.head.fields.iter().skip(i + 1).position(|g| self.has_name_of(f, g))?,
        };
        Some((at, self.head.fields.get(at)?))
    }
}

/// Converts a byte of a field name to the byte of the parameter name.
fn param_byte(b: u8) -> u8 {
    if b == b'-' { b'_' } else { b.to_ascii_uppercase() }
}

/// Returns `true` if a parameter's name, without `HTTP_`, stands for a field.
fn stands_for(rest: &[u8], field: &[u8]) -> bool {
    rest.len() == field.len() && rest.iter().zip(field).all(|(r, f)| *r == param_byte(*f))
}

/// Returns `true` if two field names share one parameter.
fn same_param(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| param_byte(*a) == param_byte(*b))
}

/// Appends the host of the request, with its port if the client sent one.
fn host(req: &Request, out: &mut Vec<u8>) {
    match req.head.host.as_slice() {
        [] => out.extend_from_slice(&req.http().server(req).name),
        host => out.extend_from_slice(host),
    }
    if let Some(port) = req.head.port {
        out.push(b':');
        response::number(out, u64::from(port));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &[(String, String)]) -> Request {
        let mut req = crate::testing::request("", "");
        let text: String = lines.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        crate::testing::head(&mut req, &text);
        req
    }

    /// Returns values by parameter, in the order of their first lines.
    fn joined(h: &RequestHead) -> Vec<(String, String)> {
        let same = Same::of(h);
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let firsts = h.fields.iter().enumerate().filter(|(i, _)| same.is_first(*i));
        firsts
            .map(|(i, f)| {
                let mut value = text(f.value.of(&h.buf));
                let mut at = i;
                while let Some((next, g)) = same.next(at) {
                    value = format!("{value}, {}", text(g.value.of(&h.buf)));
                    at = next;
                }
                (text(f.name.of(&h.buf)).to_ascii_uppercase().replace('-', "_"), value)
            })
            .collect()
    }

    #[test]
    fn many_fields_are_joined_as_few_are() {
        let names = ["X-A", "x-a", "X-B", "X-a", "X-C", "x-b"];
        let few: Vec<_> = (0..24).map(|i| (names[i % 6].to_owned(), i.to_string())).collect();
        let few = head(&few);
        let of_few = joined(&few.head);
        assert!(Same::of(&few.head).chains.is_empty());
        let more = (24..60).map(|i| (format!("Y-{i}"), i.to_string()));
        let many: Vec<_> = (0..24).map(|i| (names[i % 6].to_owned(), i.to_string())).chain(more).collect();
        let many = head(&many);
        assert!(!Same::of(&many.head).chains.is_empty());
        // `Host` comes after the last of them.
        let of_many = joined(&many.head);
        assert_eq!(of_many[..of_few.len() - 1], of_few[..of_few.len() - 1]);
        assert_eq!(of_many.len(), of_few.len() + 36);
    }
}
