//! Any bytes that a worker process may send to the master, in two pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/forebay/src/worker_messages.rs"]
#[allow(dead_code)]
mod worker_messages;

use worker_messages::{Broken, WorkerMessage, WorkerMessages};

fn drain(answers: &mut WorkerMessages, got: &mut Vec<WorkerMessage>) -> Result<(), Broken> {
    while let Some(answer) = answers.next()? {
        if let WorkerMessage::Failed(text) = &answer {
            assert!(text.len() < 2000 && !text.chars().any(char::is_control));
        }
        got.push(answer);
    }
    Ok(())
}

fuzz_target!(|input: (&[u8], &[u8])| {
    let (first, second) = input;
    let (mut whole, mut pieces) = (WorkerMessages::default(), WorkerMessages::default());
    let (mut of_whole, mut of_pieces) = (Vec::new(), Vec::new());
    whole.add(first);
    whole.add(second);
    let end = drain(&mut whole, &mut of_whole);
    pieces.add(first);
    let end_of_pieces = drain(&mut pieces, &mut of_pieces).and_then(|()| {
        pieces.add(second);
        drain(&mut pieces, &mut of_pieces)
    });
    assert_eq!((of_whole, end), (of_pieces, end_of_pieces));
});
