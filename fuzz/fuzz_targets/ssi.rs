//! Any page, cut anywhere: what the parser finds does not depend on the cuts, what it keeps has bounds, and a command
//! that is written out is the same command.
#![no_main]

use forebay_modules::parts::ssi::{Command, Event, NAME, PARAMETERS, Parser};
use libfuzzer_sys::fuzz_target;

const LONGEST: usize = 40;

fn parse(pieces: &[&[u8]]) -> (Vec<u8>, Vec<Command>, usize) {
    let mut parser = Parser::new(LONGEST);
    let (mut text, mut commands, mut broken) = (Vec::new(), Vec::new(), 0);
    for piece in pieces {
        let mut rest = *piece;
        while let Some(event) = parser.next(&mut rest) {
            match event {
                Event::Text(t) => text.extend_from_slice(t),
                Event::Command(c) => commands.push(c),
                Event::Broken(_) => broken += 1,
            }
        }
    }
    text.extend_from_slice(parser.end());
    (text, commands, broken)
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, page)) = data.split_first() else { return };
    let whole = parse(&[page]);
    let bytes: Vec<&[u8]> = page.chunks(usize::from(*cut).max(1)).collect();
    assert_eq!(parse(&bytes), whole);
    assert!(whole.0.len() <= page.len());
    for c in &whole.1 {
        assert!(c.name.len() <= NAME && c.parameters.len() <= PARAMETERS);
        assert!(c.parameters.iter().all(|(n, v)| n.len() <= NAME && v.len() <= LONGEST));
        let mut written = Vec::new();
        c.write(&mut written);
        assert_eq!(parse(&[&written]), (Vec::new(), vec![c.clone()], 0));
    }
});
