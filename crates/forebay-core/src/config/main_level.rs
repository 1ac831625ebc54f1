//! Directives of the main level and of `events`.

use super::main_settings::{Affinity, MainSettings, WorkerCount};
use super::value::{Setting, first, once};
use super::{Build, Main, Scope, error_log};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use std::path::PathBuf;

type MainScope<'a> = Scope<'a, Main>;
type Setter = fn(&Directive, &mut MainSettings, &mut MainScope<'_>) -> Result<(), Error>;

/// Directives of the main level that have no block.
const MAIN: &[(&str, Setter)] = &[
    ("daemon", |d, m, cx| set(&mut m.daemon, d, cx)),
    ("master_process", |d, m, cx| set(&mut m.master_process, d, cx)),
    ("pid", |d, m, cx| set(&mut m.pid, d, cx)),
    ("working_directory", |d, m, cx| put(&mut m.working_directory, d, cx, |_| Ok(PathBuf::from(text(d, 0))))),
    ("user", |d, m, cx| put(&mut m.user, d, cx, |_| Ok((text(d, 0), d.args.get(1).map(|_| text(d, 1)))))),
    ("worker_processes", |d, m, cx| put(&mut m.worker_processes, d, cx, |cx| worker_processes(d, cx))),
    ("worker_cpu_affinity", worker_cpu_affinity),
    ("worker_priority", |d, m, cx| put(&mut m.worker_priority, d, cx, |cx| priority(d, cx))),
    ("worker_rlimit_nofile", |d, m, cx| {
        put(&mut m.worker_rlimit_nofile, d, cx, |cx| {
            units::number(first(d)).ok_or_else(|| cx.directive_error(d, "invalid number"))
        })
    }),
    ("worker_rlimit_core", |d, m, cx| {
        put(&mut m.worker_rlimit_core, d, cx, |cx| {
            units::offset(first(d)).ok_or_else(|| cx.directive_error(d, "invalid value"))
        })
    }),
    ("worker_shutdown_timeout", |d, m, cx| {
        put(&mut m.worker_shutdown_timeout, d, cx, |cx| {
            units::duration_ms(first(d)).ok_or_else(|| cx.directive_error(d, "invalid value"))
        })
    }),
    ("worker_stall_timeout", |d, m, cx| {
        put(&mut m.worker_stall_timeout, d, cx, |cx| {
            units::duration_ms(first(d)).ok_or_else(|| cx.directive_error(d, "invalid value"))
        })
    }),
    ("env", |d, m, _| {
        m.env.push(match text(d, 0).split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (text(d, 0), None),
        });
        Ok(())
    }),
    ("error_log", |d, m, cx| {
        m.error_log.push(error_log::parse(d, cx)?);
        Ok(())
    }),
];

/// Names of the directives of the main level that have no block of a front end.
pub fn main_directives() -> impl Iterator<Item = &'static str> {
    MAIN.iter().map(|(name, _)| *name).chain(["events"])
}

/// Names of the directives of `events` that have an effect.
pub const EVENTS_DIRECTIVES: &[&str] = &["worker_connections"];

/// Takes a directive of the main level. Others than those of [`main_directives`] have no effect.
pub(super) fn main_directive(
    d: &Directive,
    m: &mut MainSettings,
    cx: &mut MainScope<'_>,
) -> Result<(), Error> {
    match MAIN.iter().find(|(name, _)| name.as_bytes() == d.name.text) {
        Some((_, set)) => set(d, m, cx),
        None => Ok(()),
    }
}

/// Takes the `events` block.
pub(super) fn events_block(d: &Directive, m: &mut MainSettings, cx: &mut MainScope<'_>) {
    for e in d.block.iter().flatten().filter(|e| e.name.text == b"worker_connections") {
        let taken = put(&mut m.worker_connections, e, cx, |cx| {
            units::number(first(e)).map(|n| n as usize).ok_or_else(|| invalid_number(e, cx))
        });
        cx.keep(taken);
    }
}

fn set<T: Setting<Main>>(slot: &mut Option<T>, d: &Directive, cx: &mut MainScope<'_>) -> Result<(), Error> {
    *slot = Some(T::take(slot.take(), d, cx)?);
    Ok(())
}

/// Fills a slot, which must be empty, with what `read` returns.
fn put<T>(
    slot: &mut Option<T>,
    d: &Directive,
    cx: &mut MainScope<'_>,
    read: impl FnOnce(&Build<'_>) -> Result<T, Error>,
) -> Result<(), Error> {
    once(slot, d, cx)?;
    *slot = Some(read(cx)?);
    Ok(())
}

/// Returns an argument as text, empty if it is missing.
fn text(d: &Directive, n: usize) -> String {
    d.args.get(n).map(|w| w.as_str().into_owned()).unwrap_or_default()
}

fn invalid_number(d: &Directive, cx: &Build<'_>) -> Error {
    match d.args.first() {
        Some(w) => cx.error_at(d, w, format!("invalid number \"{}\"", w.as_str())),
        None => cx.directive_error(d, "invalid number"),
    }
}

fn worker_processes(d: &Directive, cx: &Build<'_>) -> Result<WorkerCount, Error> {
    if first(d) == b"auto" {
        return Ok(WorkerCount::Auto);
    }
    let count = units::number(first(d)).filter(|n| *n > 0 && *n < 10_000);
    count.map(|n| WorkerCount::Count(n as usize)).ok_or_else(|| cx.directive_error(d, "invalid value"))
}

fn priority(d: &Directive, cx: &Build<'_>) -> Result<i32, Error> {
    let (negative, digits) = first(d).strip_prefix(b"-").map_or((false, first(d)), |rest| (true, rest));
    let n = units::number(digits).and_then(|n| i32::try_from(n).ok());
    let n = n.ok_or_else(|| cx.directive_error(d, "invalid number"))?;
    Ok(if negative { -n } else { n })
}

fn worker_cpu_affinity(d: &Directive, m: &mut MainSettings, cx: &mut MainScope<'_>) -> Result<(), Error> {
    if m.worker_cpu_affinity != Affinity::Unset {
        return Err(cx.error(d, "\"worker_cpu_affinity\" directive is duplicate"));
    }
    m.worker_cpu_affinity = match d.args.as_slice() {
        [auto] if auto.text == b"auto" => Affinity::Auto(None),
        [auto, mask] if auto.text == b"auto" => Affinity::Auto(Some(cpu_mask(&mask.text, d, cx)?)),
        [auto, ..] if auto.text == b"auto" => {
            return Err(cx.error(d, "invalid number of arguments in \"worker_cpu_affinity\" directive"));
        }
        masks => Affinity::Masks(masks.iter().map(|w| cpu_mask(&w.text, d, cx)).collect::<Result<_, _>>()?),
    };
    Ok(())
}

/// Reads a mask of CPUs: `0101` is those of numbers 0 and 2.
fn cpu_mask(text: &[u8], d: &Directive, cx: &Build<'_>) -> Result<Vec<bool>, Error> {
    if let Some(c) = text.iter().rev().find(|b| !b"01 ".contains(b)) {
        let text = format!("invalid character \"{}\" in \"worker_cpu_affinity\"", char::from(*c));
        return Err(cx.error(d, text));
    }
    let bits: Vec<bool> = text.iter().rev().filter(|b| **b != b' ').map(|b| *b == b'1').collect();
    if bits.len() > 1024 {
        return Err(cx.error(d, "\"worker_cpu_affinity\" supports up to 1024 CPUs only"));
    }
    Ok(bits)
}
