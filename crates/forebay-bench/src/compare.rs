pub const ROUNDS: usize = 20;
