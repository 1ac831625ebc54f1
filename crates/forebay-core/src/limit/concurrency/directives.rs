//! `limit_conn` and `limit_conn_zone`.

use super::{ConnZones, Counter, Defined, Limits, TABLES, Table};
use crate::config::value::Setting;
use crate::config::{Context, Scope};
use crate::limit::outcomes::Limited;
use crate::limit::shared_count::SharedCount;
use crate::limit::zones;
use crate::shared_store::{Link, Stores};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use std::collections::HashMap;
use std::sync::Arc;

impl<C> Setting<C> for Limits
where
    C: Context,
    C::Tables: AsMut<ConnZones>,
{
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        let mut all = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        let [name, most] = d.args.as_slice() else { return Ok(Limits(Arc::new(all))) };
        cx.share_zone(d, &name.text, (C::BLOCK, "limit_conn"), None)?;
        let zone = cx.tables.as_mut().find_or_promise(&name.text, C::BLOCK, Limited::Connections);
        if all.iter().any(|(z, _)| Arc::ptr_eq(z, &zone)) {
            return Err(cx.error(d, "\"limit_conn\" directive is duplicate"));
        }
        let n = units::number(&most.text).filter(|n| *n > 0);
        let n = n.ok_or_else(|| {
            cx.error_at(d, most, format!("invalid number of connections \"{}\"", most.as_str()))
        })?;
        if n > 65535 {
            return Err(cx.error_at(d, most, "connection limit must be less 65536"));
        }
        all.push((zone, n as u32));
        Ok(Limits(Arc::new(all)))
    }
}

/// Reads `limit_conn_zone`.
///
/// # Errors
/// In nginx's words.
pub fn zone<C>(d: &Directive, cx: &mut Scope<'_, C>) -> Result<(), Error>
where
    C: Context,
    C::Tables: AsMut<ConnZones> + Stores,
{
    let Some((key_word, options)) = d.args.split_first() else { return Err(cx.error(d, "no key")) };
    let key = cx.template(d, key_word)?;
    let (mut name, mut size) = (Vec::new(), 0);
    let mut sync = None;
    for w in options {
        match zones::name_and_size(d, w, cx)? {
            Some(zone) => (name, size) = zone,
            None if w.text == b"sync" => {
                let missing = cx.error_at(d, w, "\"sync\" needs a \"shared_store\" in the http block");
                if cx.tables.shared_store().is_none() {
                    return Err(cx.error_at(
                        d,
                        w,
                        "\"sync\" of \"limit_conn_zone\" works in the http block only",
                    ));
                }
                sync = Some(missing);
            }
            None => return Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()))),
        }
    }
    if name.is_empty() {
        return Err(cx.error(d, "\"limit_conn_zone\" must have \"zone\" parameter"));
    }
    cx.share_zone(d, &name, (C::BLOCK, "limit_conn"), Some(size as u64))?;
    let z = cx.tables.as_mut().find_or_promise(&name, C::BLOCK, Limited::Connections);
    let counter = match sync {
        None => {
            let make = || Table { map: HashMap::default(), room: size, used: 0 };
            Counter::Local(TABLES.get(&name, &key_word.text, size, make))
        }
        Some(missing) => {
            let shared = Arc::new(SharedCount::new(&name, &key_word.text, size, Link::of_process()));
            if let Some(store) = cx.tables.shared_store() {
                store.add(shared.clone(), missing);
            }
            Counter::Shared(shared)
        }
    };
    if let Err(_again) = z.defined.set(Defined { key, counter }) {
        let text = String::from_utf8_lossy(&name).into_owned();
        let key = key_word.as_str();
        return Err(cx.error(d, format!("limit_conn_zone \"{text}\" is already bound to key \"{key}\"")));
    }
    Ok(())
}
