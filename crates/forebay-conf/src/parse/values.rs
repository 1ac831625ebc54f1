//! The words of directives that have no behaviour yet, judged as nginx judges them, so that Forebay takes
//! no configuration that nginx refuses.

use super::printable;
use crate::grammar::{Row, Status, Support, Value};
use crate::tree::Word;
use crate::units;

/// Smallest memory pool of nginx on 64-bit machines, and the step in which pools grow; bytes.
const LEAST_POOL: u64 = 112;
const POOL_STEP: u64 = 16;

/// A fault, and the word that has it (none: the directive has it).
pub(super) struct Wrong<'a> {
    pub(super) message: String,
    pub(super) word: Option<&'a Word>,
}

/// Checks the words of a directive whose count is right. `again`: it stood in this block before.
pub(super) fn check<'a>(row: &Row, args: &'a [Word], again: bool) -> Option<Wrong<'a>> {
    let ours = matches!(row.support, Support::Hint | Support::Met);
    if ours && row.once && again {
        return Some(Wrong { message: format!("\"{}\" directive is duplicate", row.name), word: None });
    }
    // A second flag is a duplicate, whatever its value. The code with the behaviour reports that.
    if row.args.flag && !again && !matches!(row.status, Status::Obsolete(_)) {
        return args.iter().find(|word| units::flag(&word.text).is_none()).map(|word| Wrong {
            message: format!(
                "invalid value \"{}\" in \"{}\" directive, it must be \"on\" or \"off\"",
                printable(word),
                row.name
            ),
            word: Some(word),
        });
    }
    if !ours {
        return None;
    }
    let word =
        args.iter().enumerate().find(|(i, word)| !fits(row.value, *i, &word.text)).map(|(_, word)| word)?;
    Some(Wrong { message: message(row, word), word: Some(word) })
}

/// Returns nginx's text for a number or a size that is none of those allowed.
fn limit_message(row: &Row, word: &Word) -> Option<String> {
    let number = units::number(&word.text);
    let size = units::size(&word.text);
    match row.value {
        Value::Range(min, max) => number.map(|_| format!("value must be between {min} and {max}")),
        Value::Power => number.map(|_| format!("\"{}\" directive must be a power of two", row.name)),
        Value::SizeFrom(_) => size.map(|_| format!("\"{}\" directive value is too small", row.name)),
        Value::Pool => size.map(pool_message),
        _ => None,
    }
}

fn pool_message(size: u64) -> String {
    if size < LEAST_POOL {
        return format!("the pool size must be no less than {LEAST_POOL}");
    }
    format!("the pool size must be a multiple of {POOL_STEP}")
}

/// Returns nginx's text for a word that does not fit.
fn message(row: &Row, word: &Word) -> String {
    if let Some(text) = limit_message(row, word) {
        return text;
    }
    match row.value {
        Value::Number | Value::Range(..) | Value::Power => {
            format!("\"{}\" directive invalid number", row.name)
        }
        Value::OneOf(_) if row.name == "use" => format!("invalid event type \"{}\"", printable(word)),
        Value::OneOf(_) => format!("invalid value \"{}\"", printable(word)),
        _ => format!("\"{}\" directive invalid value", row.name),
    }
}

fn fits(value: Value, index: usize, text: &[u8]) -> bool {
    match value {
        Value::Any => true,
        Value::Number => units::number(text).is_some(),
        Value::Range(min, max) => units::number(text).is_some_and(|n| (min..=max).contains(&n)),
        Value::Size => units::size(text).is_some(),
        Value::SizeFrom(least) => units::size(text).is_some_and(|n| n >= least),
        Value::Power => units::number(text).is_some_and(u64::is_power_of_two),
        Value::Pool => units::size(text).is_some_and(|n| n >= LEAST_POOL && n % POOL_STEP == 0),
        Value::Offset => units::offset(text).is_some(),
        Value::Millis => units::time_ms(text).is_some(),
        Value::Seconds => units::time_secs(text).is_some(),
        Value::SizeOrVariable => text.contains(&b'$') || units::size(text).is_some(),
        Value::Buffers if index == 0 => units::number(text).is_some_and(|count| count > 0),
        Value::Buffers => units::size(text).is_some_and(|size| size > 0),
        Value::OneOf(words) => words.split('|').any(|word| word.as_bytes().eq_ignore_ascii_case(text)),
        Value::Exactly(forms) => forms.split('|').any(|form| match form.strip_suffix('*') {
            Some(beginning) => text.starts_with(beginning.as_bytes()),
            None if form == "<offset>" => units::offset(text).is_some(),
            None => form.as_bytes() == text,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::{self, Contexts};
    use crate::tree::Span;

    fn wrong(text: &str, again: bool) -> String {
        let words: Vec<Word> =
            text.split(' ').map(|w| Word { text: w.into(), span: Span::default(), quoted: false }).collect();
        let (name, args) = words.split_first().expect("a name");
        let contexts = [Contexts::HTTP, Contexts::EVENTS, Contexts::MAIN];
        let row = contexts.iter().find_map(|c| grammar::row(&name.text, *c)).expect("a row");
        check(row, args, again).map_or(String::new(), |wrong| wrong.message)
    }

    #[test]
    fn as_nginx_says() {
        for (text, message) in [
            ("mp4_max_buffer_size 1g", "\"mp4_max_buffer_size\" directive invalid value"),
            ("output_buffers 0 8k", "\"output_buffers\" directive invalid value"),
            ("output_buffers 8 8s", "\"output_buffers\" directive invalid value"),
            ("debug_points halt", "invalid value \"halt\""),
            ("connection_pool_size 0", "the pool size must be no less than 112"),
            ("request_pool_size 301", "the pool size must be a multiple of 16"),
            ("connection_pool_size x", "\"connection_pool_size\" directive invalid value"),
            ("connection_pool_size 256", ""),
            ("use kqueue", "invalid event type \"kqueue\""),
            ("aio_write x", "invalid value \"x\" in \"aio_write\" directive, it must be \"on\" or \"off\""),
            ("output_buffers 8 8k", ""),
            ("http2_recv_buffer_size 16", "\"http2_recv_buffer_size\" directive value is too small"),
            ("http2_streams_index_size 33", "\"http2_streams_index_size\" directive must be a power of two"),
            ("http2_streams_index_size x", "\"http2_streams_index_size\" directive invalid number"),
            ("http2_streams_index_size 32", ""),
            ("debug_points ABORT", ""),
            ("proxy_limit_rate $x", ""),
            ("use epoll", ""),
            ("aio threads", ""),
            ("aio threads=$host", ""),
            ("aio Threads", "\"aio\" directive invalid value"),
            ("directio 1g", ""),
            ("directio off", ""),
            ("directio OFF", "\"directio\" directive invalid value"),
            ("sendfile_max_chunk 1g", "\"sendfile_max_chunk\" directive invalid value"),
            ("keepalive_min_timeout 1M", "\"keepalive_min_timeout\" directive invalid value"),
            ("output_buffers 1 0", "\"output_buffers\" directive invalid value"),
            ("http2_push_preload x", ""),
        ] {
            assert_eq!(wrong(text, false), message, "{text}");
        }
        assert_eq!(wrong("aio_write x", true), "\"aio_write\" directive is duplicate");
        assert_eq!(wrong("addition_types x", true), "");
        assert_eq!(wrong("sendfile x", true), "\"sendfile\" directive is duplicate");
        assert_eq!(wrong("etag x", true), "", "left to who implements it");
    }
}
