//! Rows: what a wrong peer sends, and what it is answered.

use crate::lab::{Lab, Stage, seed};
use crate::raw::Close;
use crate::setup::Setup;
use forebay_quic::connection::Reason;
use forebay_quic::error::Code;
use forebay_quic::id::Side;

pub const BOTH: &[Side] = &[Side::Server, Side::Client];
pub const SERVER: &[Side] = &[Side::Server];
pub const CLIENT: &[Side] = &[Side::Client];

/// What is expected.
#[derive(Clone, Copy)]
pub enum Want {
    /// CONNECTION_CLOSE of the transport with a code, and the type of the frame that caused it.
    Close(Code, u64),
    /// No packet is taken, and the connection goes on.
    Dropped,
    /// Packets are taken, nothing comes of them, and the connection goes on.
    Ignored,
    /// A frame comes back whose text begins so, and the connection goes on.
    Answered(&'static str),
    /// The connection is over, and nobody is told.
    Lost(fn(&Reason) -> bool),
    /// There is no connection, and nothing is sent.
    Nothing,
    /// What it says.
    That(fn(&mut Lab) -> bool),
}

/// Row of the table.
pub struct Row {
    pub rfc: u16,
    pub section: &'static str,
    pub sides: &'static [Side],
    pub stage: Stage,
    pub what: &'static str,
    pub act: fn(&mut Lab),
    pub want: Want,
    pub setup: fn(&mut Setup),
}

impl Row {
    /// Changes how the test begins.
    pub fn with(mut self, setup: fn(&mut Setup)) -> Row {
        self.setup = setup;
        self
    }
}

/// Begins a row about a section of RFC 9000.
pub fn row(
    section: &'static str,
    sides: &'static [Side],
    stage: Stage,
    what: &'static str,
    act: fn(&mut Lab),
    want: Want,
) -> Row {
    Row { rfc: 9000, section, sides, stage, what, act, want, setup: |_| {} }
}

/// Says that rows are about another RFC.
pub fn of(rfc: u16, rows: Vec<Row>) -> Vec<Row> {
    rows.into_iter().map(|row| Row { rfc, ..row }).collect()
}

/// Runs rows, and returns how many there are: one for each side. Fails with a list of those whose answer is another one.
pub fn run(rows: &[Row]) -> usize {
    let (mut count, mut failures) = (0, Vec::new());
    for row in rows {
        for side in row.sides {
            count += 1;
            seed(1);
            let mut setup = Setup::default();
            (row.setup)(&mut setup);
            let mut lab = Lab::new(*side, row.stage, &setup);
            let before = (lab.node.taken(), lab.sent.len());
            (row.act)(&mut lab);
            if let Err(found) = judge(&mut lab, row.want, before) {
                let Row { rfc, section, what, .. } = row;
                failures.push(format!("RFC {rfc}, {section}: {side:?} and {what}: {found}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
    count
}

fn judge(lab: &mut Lab, want: Want, (taken, sent): (u64, usize)) -> Result<(), String> {
    let state = format!(
        "open: {}, closes: {:?}, reason: {:?}, packets taken: {}",
        lab.is_open(),
        lab.raw.closes,
        lab.lost(),
        lab.node.taken() - taken.min(lab.node.taken()),
    );
    let is_open = lab.is_open() && lab.raw.closes.is_empty();
    let is_right = match want {
        Want::Close(code, frame) => {
            let is_told = |close: &Close| close.code == code.0 && close.frame == Some(frame);
            !lab.is_open() && !lab.raw.closes.is_empty() && lab.raw.closes.iter().all(is_told)
        }
        Want::Dropped => is_open && lab.node.taken() == taken,
        Want::Ignored => is_open && lab.node.taken() > taken,
        Want::Answered(text) => is_open && lab.raw.count(text) > 0,
        Want::Lost(is_reason) => {
            !lab.is_open() && lab.raw.closes.is_empty() && lab.lost().is_some_and(is_reason)
        }
        Want::Nothing => lab.node.connections.is_empty() && lab.sent.len() == sent,
        Want::That(check) => check(lab),
    };
    if is_right { Ok(()) } else { Err(state) }
}
