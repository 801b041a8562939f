//! Finds unclosed brackets, a mistake that the interpreter notices late and reports in the wrong
//! place.

/// Returns the innermost bracket still open before this line (counted from zero): line, column and
/// character.
pub fn find_open_bracket(text: &str, end: usize) -> Option<(usize, usize, char)> {
    let mut open_brackets = Vec::new();
    let mut quote: Option<(char, bool)> = None;
    for (line_index, line) in text.lines().take(end).enumerate() {
        // A string that is not triple-quoted ends with its line, even if its closing quote is
        // missing.
        quote = quote.filter(|(_, triple)| *triple);
        let line: Vec<char> = line.chars().collect();
        let mut column = 0;
        while let Some(&c) = line.get(column) {
            let is_tripled = line[column..].starts_with(&[c, c, c]);
            match (quote, c) {
                (Some(_), '\\') => column += 1,
                (Some((mark, false)), c) if c == mark => quote = None,
                (Some((mark, true)), c) if c == mark && is_tripled => {
                    quote = None;
                    column += 2;
                }
                (None, '"' | '\'') => {
                    quote = Some((c, is_tripled));
                    column += if is_tripled { 2 } else { 0 };
                }
                (None, '#') => break,
                (None, '(' | '[' | '{') => open_brackets.push((line_index, column, c)),
                (None, ')' | ']' | '}') => drop(open_brackets.pop()),
                _ => {}
            }
            column += 1;
        }
    }
    open_brackets.pop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_open_bracket_is_found() {
        assert_eq!(find_open_bracket("f(\n  [1,\n", 9), Some((1, 2, '[')));
        assert_eq!(find_open_bracket("f(\n  [1],\n", 9), Some((0, 1, '(')));
        assert_eq!(find_open_bracket("f(\n  [1,\n", 1), Some((0, 1, '(')));
        assert_eq!(find_open_bracket("f()\n", 9), None);
    }

    #[test]
    fn brackets_in_strings_and_comments_are_none() {
        for text in [
            "'('",
            "\"\\\"(\"",
            "# (",
            "'''\n(\n'''",
            "\"\"\"a\"(\"\"\"",
            "x = \"it's (\"",
            "'(\n",
            ")",
        ] {
            assert_eq!(find_open_bracket(text, 9), None, "{text}");
        }
        assert_eq!(find_open_bracket("'''x''' + [\n", 9), Some((0, 10, '[')));
    }
}
