//! Groups of words with nearly the same meaning.

use std::collections::HashMap;

use super::words::stem_word;

const WORD_GROUPS: &str = include_str!("word_groups.list");

/// Other words of the groups of a word, by stem.
#[derive(Debug)]
pub(super) struct WordGroups {
    related: HashMap<String, Vec<String>>,
}

impl WordGroups {
    /// Parses the built-in groups.
    pub(super) fn built_in() -> WordGroups {
        WordGroups::parse(WORD_GROUPS)
    }

    fn parse(text: &str) -> WordGroups {
        let mut related: HashMap<String, Vec<String>> = HashMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let stems: Vec<String> = line.split_whitespace().map(stem_word).collect();
            for stem in &stems {
                let others = related.entry(stem.clone()).or_default();
                for other in stems.iter().filter(|other| *other != stem) {
                    if !others.contains(other) {
                        others.push(other.clone());
                    }
                }
            }
        }
        WordGroups { related }
    }

    /// Returns the other stems of the groups of a stem.
    pub(super) fn related_stems(&self, stem: &str) -> &[String] {
        self.related.get(stem).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_related_to_the_others_of_all_its_groups() {
        let groups = WordGroups::parse("# comment here\nerase removes\nerase wipe\n");
        assert_eq!(groups.related_stems("eras"), ["remov", "wip"]);
        assert_eq!(groups.related_stems("wip"), ["eras"]);
        assert!(groups.related_stems("comment").is_empty());
    }

    #[test]
    fn built_in_groups_have_plain_words_and_no_word_alone() {
        for line in WORD_GROUPS.lines().skip(1) {
            assert!(line.split(' ').count() >= 2, "{line}");
            assert!(line.chars().all(|c| c.is_ascii_lowercase() || c == ' '), "{line}");
        }
    }
}
