//! "Did you mean …?": the known name that a mistyped one was probably meant to be.

/// The candidate closest to `name`, if one is close enough to have been meant.
pub fn nearest<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    if name.len() > 64 {
        return None;
    }
    candidates
        .iter()
        .map(|candidate| (distance(name, candidate), *candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance over characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substitution = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substitution.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        assert_eq!(nearest("expiry", &["terminal", "expiry_s"]), Some("expiry_s"));
        assert_eq!(nearest("colour", &["terminal", "expiry_s"]), None);
        assert_eq!(nearest(&"x".repeat(65), &["terminal"]), None);
    }
}
