//! Output for people: colour, tables and wrapped lines that fit the terminal. A pipe or a file gets
//! neither colour nor cut lines, so that scripts see everything.

use std::io::IsTerminal;

use rustix::termios::tcgetwinsize;

use crate::base::visible;

/// Width of a terminal that does not say how wide it is.
const DEFAULT_WIDTH: usize = 80;
/// Narrower terminals get lines of this width, which they break themselves.
const MIN_WIDTH: usize = 40;
/// Space between two columns.
const COLUMN_GAP: &str = "  ";

/// Returns the width of the terminal on standard output; `None` if it is not a terminal.
pub fn stdout_width() -> Option<usize> {
    let stdout = std::io::stdout();
    stdout.is_terminal().then(|| {
        let columns = tcgetwinsize(&stdout).map_or(0, |size| usize::from(size.ws_col));
        if columns == 0 { DEFAULT_WIDTH } else { columns.max(MIN_WIDTH) }
    })
}

/// Returns whether to use colour on a stream: it is a terminal that can, and NO_COLOR is not set.
pub fn uses_colour(stream: &impl IsTerminal) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// Returns the text with a colour or weight (an SGR code), if `colour` is true.
pub fn paint(text: &str, code: &str, colour: bool) -> String {
    if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Breaks one line between words so that it fits the width. Further lines are indented. Without a
/// width, the line stays as it is. A word that is too long has a line of its own.
pub fn wrap_line(line: &str, width: Option<usize>, indent: usize) -> String {
    let Some(width) = width.filter(|width| line.chars().count() > *width) else {
        return line.to_owned();
    };
    // A narrow terminal still gets some text on each line.
    let indent = indent.min(width * 2 / 3);
    let mut wrapped = String::new();
    let mut column = 0;
    for word in line.split_inclusive(' ') {
        let length = word.trim_end().chars().count();
        // Blanks at the end of a line need no space.
        if length > 0 && column + length > width && column > indent {
            wrapped.truncate(wrapped.trim_end().len());
            wrapped.push('\n');
            wrapped.push_str(&" ".repeat(indent));
            column = indent;
        }
        wrapped.push_str(word);
        column += word.chars().count();
    }
    wrapped
}

/// Shortens a text to a number of characters, with an ellipsis where something is missing.
pub fn shorten_end(text: &str, width: usize) -> String {
    match text.chars().count() <= width {
        true => text.to_owned(),
        false => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Shortens a path from its beginning: its end tells it from others.
pub fn shorten_start(text: &str, width: usize) -> String {
    let length = text.chars().count();
    match length <= width {
        true => text.to_owned(),
        false => std::iter::once('…').chain(text.chars().skip(length + 1 - width.max(1))).collect(),
    }
}

/// Escapes hidden characters, and keeps all spaces, tabs and line breaks. For text to read; text to
/// decide by is escaped by [`visible::escape_lines`].
pub fn escape_shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            c if visible::is_hidden_char(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}

/// How a column gives way if the table is too wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnFit {
    /// It keeps its width.
    Fixed,
    /// It loses its end.
    CutEnd,
    /// It loses its beginning.
    CutStart,
}

/// Table with a heading and one line per row.
pub struct TextTable {
    fits: Vec<ColumnFit>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// Creates a table with these headings.
    pub fn new(columns: &[(&str, ColumnFit)]) -> TextTable {
        TextTable {
            fits: columns.iter().map(|(_, fit)| *fit).collect(),
            rows: vec![columns.iter().map(|(heading, _)| (*heading).to_owned()).collect()],
        }
    }

    /// Adds a row, with one cell per column.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns the lines of the table; with a width, none is longer.
    pub fn render(&self, width: Option<usize>) -> String {
        let widths = self.column_widths(width);
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).zip(&self.fits).map(|((cell, width), fit)| {
                let cell = match fit {
                    ColumnFit::Fixed => cell.clone(),
                    ColumnFit::CutEnd => shorten_end(cell, *width),
                    ColumnFit::CutStart => shorten_start(cell, *width),
                };
                format!("{cell:<width$}")
            });
            text.push_str(cells.collect::<Vec<_>>().join(COLUMN_GAP).trim_end());
            text.push('\n');
        }
        text
    }

    /// Returns the width of each column. Those that give way share what the fixed ones leave: the
    /// widest is narrowed first.
    fn column_widths(&self, width: Option<usize>) -> Vec<usize> {
        let widest = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..self.fits.len()).map(widest).collect();
        let gaps = COLUMN_GAP.len() * self.fits.len().saturating_sub(1);
        let excess =
            width.map_or(0, |width| (widths.iter().sum::<usize>() + gaps).saturating_sub(width));
        for _ in 0..excess {
            let flexible = self.fits.iter().zip(&mut widths);
            let flexible = flexible.filter(|(fit, width)| **fit != ColumnFit::Fixed && **width > 1);
            if let Some((_, widest)) = flexible.max_by_key(|(_, width)| **width) {
                *widest -= 1;
            }
        }
        widths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_its_terminal_and_is_whole_in_a_pipe() {
        let columns = [
            ("PID", ColumnFit::Fixed),
            ("CLIENT", ColumnFit::CutEnd),
            ("PATH", ColumnFit::CutStart),
        ];
        let mut table = TextTable::new(&columns);
        table.add_row([
            "7".to_owned(),
            "editor".to_owned(),
            "/a/rather/long/path/project".to_owned(),
        ]);
        let whole = "PID  CLIENT  PATH\n7    editor  /a/rather/long/path/project\n";
        assert_eq!(table.render(None), whole);
        assert_eq!(table.render(Some(80)), whole);
        let narrow = table.render(Some(30));
        assert_eq!(narrow, "PID  CLIENT  PATH\n7    editor  …ong/path/project\n");
        assert!(table.render(Some(5)).lines().all(|line| line.chars().count() <= 9), "no panic");
    }

    #[test]
    fn lines_are_broken_between_words_and_indented() {
        assert_eq!(wrap_line("one two three", None, 4), "one two three");
        assert_eq!(wrap_line("one two three", Some(13), 4), "one two three");
        assert_eq!(wrap_line("one two three four", Some(10), 2), "one two\n  three\n  four");
        assert_eq!(
            wrap_line("unbreakable/and/long then", Some(10), 2),
            "unbreakable/and/long\n  then"
        );
        assert_eq!(wrap_line("  keeps  inner   space", Some(14), 2), "  keeps  inner\n  space");
    }

    #[test]
    fn a_short_text_is_not_shortened() {
        assert_eq!(shorten_end("four", 4), "four");
        assert_eq!(shorten_end("fives", 4), "fiv…");
        assert_eq!(shorten_start("fives", 4), "…ves");
        assert_eq!(shorten_start("x", 0), "…");
    }
}
