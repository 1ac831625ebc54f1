//! Bar charts of block characters.

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns the block for a row of a bar that is `eighths` high. Row 0 is the lowest.
fn block(eighths: usize, row: usize) -> char {
    let rest = eighths.saturating_sub(row * BLOCKS.len()).min(BLOCKS.len());
    rest.checked_sub(1).and_then(|at| BLOCKS.get(at).copied()).unwrap_or(' ')
}

/// Draws values as bars, `height` lines from the top down, aligned to the right. One column stands for a group of values and is as
/// high as its greatest. Values of zero and below are blank; any other has at least the lowest block.
pub fn bars(values: &[f64], width: usize, height: usize) -> Vec<String> {
    let per = values.len().div_ceil(width.max(1)).max(1);
    let groups: Vec<f64> =
        values.rchunks(per).rev().map(|group| group.iter().fold(0.0f64, |top, v| top.max(*v))).collect();
    let top = groups.iter().fold(0.0f64, |top, v| top.max(*v));
    let full = height * BLOCKS.len();
    let eighths = |v: &f64| match *v > 0.0 && top > 0.0 {
        true => ((v / top * full as f64).ceil() as usize).clamp(1, full.max(1)),
        false => 0,
    };
    let eighths: Vec<usize> = groups.iter().map(eighths).collect();
    let row = |row| {
        let line: String = eighths.iter().map(|e| block(*e, row)).collect();
        format!("{line:>width$}")
    };
    (0..height).rev().map(row).collect()
}

/// Draws values as bars in one line.
pub fn spark(values: &[f64], width: usize) -> String {
    bars(values, width, 1).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spark_lines_fit_their_width() {
        assert_eq!(spark(&[0.0, 1.0, 8.0, 4.0], 6), "   ▁█▄");
        assert_eq!(spark(&[1.0, 9.0, 9.0, 1.0, 9.0, 9.0], 3), "███");
        assert_eq!(spark(&[], 3), "   ");
        assert_eq!(spark(&[1.0, 2.0], 0).chars().count(), 1);
    }

    #[test]
    fn bars_have_rows() {
        assert_eq!(bars(&[1.0, 8.0, 16.0], 3, 2), ["  █", "▁██"]);
        assert!(bars(&[1.0], 3, 0).is_empty());
    }
}
