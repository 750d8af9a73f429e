//! A table that prints as aligned text and as Markdown.

use std::fmt::Write;

/// One section of the suite's output.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// The measurement and its method.
    pub title: String,
    /// The heads of the columns; the first is left-aligned, the others right-aligned.
    pub columns: Vec<String>,
    /// As many cells as columns each; missing cells are empty.
    pub rows: Vec<Vec<String>>,
    /// Sentences below the table.
    pub notes: Vec<String>,
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(ToString::to_string).collect();
        Self { title: title.into(), columns, ..Self::default() }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Adds a sentence below the table.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// As text for a terminal.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.title);
        for row in std::iter::once(&self.columns).chain(&self.rows).filter(|_| !self.columns.is_empty()) {
            let cells: Vec<String> =
                (0..self.columns.len()).map(|column| self.aligned(row, column)).collect();
            let _ = writeln!(out, "  {}", cells.join("  ").trim_end());
        }
        for note in &self.notes {
            let _ = writeln!(out, "  {note}");
        }
        out
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        let mut out = format!("### {}\n\n", self.title);
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        if !self.columns.is_empty() {
            out.push_str(&line(&self.columns));
            let rule = (0..self.columns.len()).map(|column| if column == 0 { " --- " } else { " ---: " });
            let _ = writeln!(out, "|{}|", rule.collect::<Vec<_>>().join("|"));
            for row in &self.rows {
                out.push_str(&line(row));
            }
            out.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(out, "{note}\n");
        }
        out
    }

    fn aligned(&self, row: &[String], column: usize) -> String {
        let length = |cells: &[String]| cells.get(column).map_or(0, |cell| cell.chars().count());
        let width = self.rows.iter().map(|row| length(row)).max().unwrap_or(0).max(length(&self.columns));
        let cell = row.get(column).map_or("", String::as_str);
        if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
    }
}

/// The word for an aim that was met or missed.
pub fn verdict(is_met: bool) -> String {
    if is_met { "met".into() } else { "MISSED".into() }
}

/// The middle one of `values`, or the mean of the two in the middle; 0 if there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.get(middle), values.len() % 2) {
        (Some(&high), 1) => high,
        (Some(&high), _) => f64::midpoint(high, values.get(middle.wrapping_sub(1)).copied().unwrap_or(high)),
        (None, _) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new("title", &["row", "figure"]);
        table.row(["a".into(), "1".into()]);
        table.row(["long|name".into(), "23456789".into()]);
        table.note("A note.");
        table
    }

    /// Goal: columns line up. Method: the whole text.
    #[test]
    fn text_is_aligned() {
        let expect =
            "title\n  row          figure\n  a                 1\n  long|name  23456789\n  A note.\n";
        assert_eq!(table().text(), expect);
    }

    /// Goal: valid Markdown, whatever the cells hold. Method: the whole text.
    #[test]
    fn markdown_is_valid() {
        let expect = "### title\n\n| row | figure |\n| --- | ---: |\n| a | 1 |\n| long\\|name | 23456789 |\n\nA note.\n\n";
        assert_eq!(table().markdown(), expect);
    }

    /// Goal: the median of few values. Method: odd, even, one, none.
    #[test]
    fn medians() {
        let check = |values: &[f64], expect: f64| {
            assert!((median(values.iter().copied()) - expect).abs() < 1e-9, "{values:?}");
        };
        check(&[3.0, 1.0, 2.0], 2.0);
        check(&[4.0, 1.0, 2.0, 3.0], 2.5);
        check(&[7.0], 7.0);
        check(&[], 0.0);
    }
}
