//! Tables for people: rows as lines with aligned columns.

use crate::client::escaped;

/// The rows as lines. Cells come from nodes, so what could control a terminal in them is escaped.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| escaped(cell.as_bytes())).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A row of headings.
pub(super) fn headings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Microseconds for people.
pub(super) fn micros(micros: Option<u64>) -> String {
    match micros {
        None => "-".to_owned(),
        Some(micros @ 0..1000) => format!("{micros} us"),
        Some(micros @ 1000..10_000) => format!("{}.{} ms", micros / 1000, micros % 1000 / 100),
        Some(micros @ 10_000..10_000_000) => format!("{} ms", micros / 1000),
        Some(micros) => format!("{} s", micros / 1_000_000),
    }
}

/// A rate for people.
pub(super) fn rate(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cell from a node cannot move the cursor, end its line or look like another column's end.
    #[test]
    fn cells_are_escaped_and_aligned() {
        let rows = [headings(&["node", "state"]), vec!["http://a\u{1b}[2J\nb".to_owned(), "ok".to_owned()]];
        assert_eq!(table(&rows), "node                  state\nhttp://a\\u{1b}[2J\\nb  ok");
    }

    #[test]
    fn figures_are_short() {
        let texts = [None, Some(7), Some(1250), Some(12_500), Some(12_500_000)].map(micros);
        assert_eq!(texts, ["-", "7 us", "1.2 ms", "12 ms", "12 s"]);
        assert_eq!([rate(0.25), rate(9.96), rate(12345.6)], ["0.2", "10.0", "12346"]);
    }
}
