//! Search over the tools of many servers, for models that are not shown all of them.
//!
//! A model describes what it wants to do, often in other words than the definition. A tool matches
//! by words without their endings, by words of the same group, and by parts of words. The labelled
//! queries in `tests/search/` measure how well. Servers write the definitions and may try to match
//! every query, so repeating a word gains little and long texts are cut.

mod definition_text;
#[cfg(test)]
mod quality_tests;
mod scoring;
mod word_groups;
mod words;

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashSet};

pub use definition_text::compact_signature;
use definition_text::{DefinitionText, cut_text};
use scoring::{ScoreBoard, SearchField, SearchWeights, TermIndex, TermIndexBuilder};
use word_groups::WordGroups;
use words::{four_grams, is_stop_word, split_words, stem_word};

use crate::catalog::ToolDefinition;
use crate::names::{ToolKey, namespaced_name};

/// Most characters of a query that are read.
const MAX_QUERY_LENGTH: usize = 1000;
/// Most different words of a query that are searched.
const MAX_QUERY_WORDS: usize = 50;
/// Share of the 4-grams of a word that a tool must have.
const MIN_SHARED_GRAMS: f32 = 0.34;
/// Most bytes of a server's id that are searched.
const MAX_SERVER_ID_BYTES: usize = 128;

/// Tool to be searched.
#[derive(Debug, Clone, Copy)]
pub struct SearchableTool<'a> {
    pub server_id: &'a str,
    pub definition: &'a ToolDefinition,
}

/// Tool that a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchHit {
    pub key: ToolKey,
    /// Above 0. Comparable only within one search.
    pub score: f32,
}

/// Index of tools. It is immutable; when definitions change, build another one.
#[derive(Debug)]
pub struct ToolIndex {
    tools: Vec<IndexedTool>,
    words: TermIndex,
    grams: TermIndex,
    groups: WordGroups,
    weights: SearchWeights,
}

#[derive(Debug)]
struct IndexedTool {
    key: ToolKey,
    /// Name among the tools of all servers.
    name: String,
    /// Stems of the words of its name on its own server.
    name_stems: Vec<String>,
}

impl ToolIndex {
    /// Indexes tools, in any order.
    pub fn new<'a>(tools: impl Iterator<Item = SearchableTool<'a>>) -> ToolIndex {
        ToolIndex::with_weights(tools, SearchWeights::default())
    }

    fn with_weights<'a>(
        tools: impl Iterator<Item = SearchableTool<'a>>,
        weights: SearchWeights,
    ) -> ToolIndex {
        let mut indexed = Vec::new();
        let (mut words, mut grams) = (TermIndexBuilder::default(), TermIndexBuilder::default());
        for SearchableTool { server_id, definition } in tools {
            let text = DefinitionText::from_definition(definition);
            let stems = field_words(server_id, &definition.name, &text)
                .map(|(field, word)| (field, stem_word(&word)));
            words.add_tool(stems);
            let parts = gram_words(&definition.name, &text).flat_map(|(field, word)| {
                four_grams(&word).into_iter().map(move |gram| (field, gram))
            });
            grams.add_tool(parts);
            indexed.push(IndexedTool {
                key: ToolKey { server_id: server_id.to_owned(), tool: definition.name.clone() },
                name: namespaced_name(server_id, &definition.name),
                name_stems: split_words(&definition.name)
                    .iter()
                    .map(|word| stem_word(word))
                    .collect(),
            });
        }
        ToolIndex {
            tools: indexed,
            words: words.build(&weights.fields),
            grams: grams.build(&weights.fields),
            groups: WordGroups::built_in(),
            weights,
        }
    }

    /// Returns the tools that match a query, best first; tools with equal scores in the order of
    /// their names. A tool whose exact name is the query comes first, and a tool that shares
    /// nothing with the query is left out. Only the first 1,000 characters and 50 words of a query
    /// are read.
    pub fn search(&self, query: &str, max_results: usize) -> Vec<SearchHit> {
        let query: String = query.trim().chars().take(MAX_QUERY_LENGTH).collect();
        let scores = self.score_query(&query);
        let best_score = scores.iter().copied().fold(0.0, f32::max);
        let mut hits: Vec<(f32, &IndexedTool)> = Vec::new();
        for (tool, score) in self.tools.iter().zip(scores) {
            // Above all others, even if the name has no word in it.
            let bonus = if tool.has_name(&query) { best_score + 1.0 } else { 0.0 };
            if score + bonus > 0.0 {
                hits.push((score + bonus, tool));
            }
        }
        hits.sort_by(|(score, tool), (other_score, other)| {
            other_score.total_cmp(score).then_with(|| tool.compare_names(other))
        });
        hits.truncate(max_results);
        hits.into_iter().map(|(score, tool)| SearchHit { key: tool.key.clone(), score }).collect()
    }

    /// Returns the score of each tool: for each word of the query, the best of the scores of the
    /// word itself, of the other words of its group, and of its parts. The sum is multiplied by the
    /// share of the words that the tool has: without it, one rare word (`Friday`) would outweigh
    /// several that describe the task. It is raised by the share of the tool's name that the query
    /// covers: `delete note` means `delete_note` rather than `delete_note_history`.
    fn score_query(&self, query: &str) -> Vec<f32> {
        let mut scores = vec![0.0; self.tools.len()];
        let mut matched_words = vec![0.0_f32; self.tools.len()];
        let mut word_scores = ScoreBoard::new(self.tools.len());
        let mut gram_scores = ScoreBoard::new(self.tools.len());
        let mut shared_grams = ScoreBoard::new(self.tools.len());
        let mut query_stems = HashSet::new();
        let words = query_words(query);
        for word in &words {
            let stem = stem_word(word);
            for (tool, score) in self.words.find_term(&stem) {
                word_scores.raise_score(tool, score);
            }
            for related in self.groups.related_stems(&stem) {
                for (tool, score) in self.words.find_term(related) {
                    word_scores.raise_score(tool, self.weights.related_word * score);
                }
                query_stems.insert(related.clone());
            }
            query_stems.insert(stem);
            let grams = four_grams(word);
            for (tool, score) in grams.iter().flat_map(|gram| self.grams.find_term(gram)) {
                gram_scores.add_score(tool, score);
                shared_grams.add_score(tool, 1.0);
            }
            let gram_count = grams.len() as f32;
            for ((tool, score), (_, shared)) in gram_scores.drain().zip(shared_grams.drain()) {
                // Fewer are chance: many words end with `tion`.
                if shared >= gram_count * MIN_SHARED_GRAMS {
                    word_scores.raise_score(tool, self.weights.four_grams * score / gram_count);
                }
            }
            for (tool, score) in word_scores.drain() {
                scores[tool] += score;
                matched_words[tool] += 1.0;
            }
        }
        let word_count = words.len().max(1) as f32;
        for ((score, matched), tool) in scores.iter_mut().zip(matched_words).zip(&self.tools) {
            if *score > 0.0 {
                let name_share = self.weights.name_share * tool.covered_name_share(&query_stems);
                *score *= matched / word_count * (1.0 + name_share);
            }
        }
        scores
    }
}

impl IndexedTool {
    /// Tells whether a query is the name of this tool, alone or with its server.
    fn has_name(&self, query: &str) -> bool {
        self.key.tool.eq_ignore_ascii_case(query) || self.name.eq_ignore_ascii_case(query)
    }

    /// Returns the share of the words of its name that are among these stems.
    fn covered_name_share(&self, stems: &HashSet<String>) -> f32 {
        let covered = self.name_stems.iter().filter(|stem| stems.contains(*stem)).count();
        covered as f32 / self.name_stems.len().max(1) as f32
    }

    fn compare_names(&self, other: &IndexedTool) -> Ordering {
        self.name.cmp(&other.name).then_with(|| self.key.cmp(&other.key))
    }
}

/// Returns the different words of a query, without stop words unless there is nothing else.
fn query_words(query: &str) -> Vec<String> {
    let all_words = split_words(query);
    let has_content = all_words.iter().any(|word| !is_stop_word(word));
    let mut seen = BTreeSet::new();
    all_words
        .into_iter()
        .filter(|word| !has_content || !is_stop_word(word))
        .filter(|word| seen.insert(stem_word(word)))
        .take(MAX_QUERY_WORDS)
        .collect()
}

/// Returns the words of all fields of a tool.
fn field_words<'a>(
    server_id: &'a str,
    name: &'a str,
    text: &'a DefinitionText,
) -> impl Iterator<Item = (SearchField, String)> {
    let server_id = cut_text(server_id, MAX_SERVER_ID_BYTES);
    let parameter_names =
        text.parameter_names.iter().map(|name| (SearchField::ParameterNames, name.as_str()));
    let parameter_descriptions = text
        .parameter_descriptions
        .iter()
        .map(|text| (SearchField::ParameterDescriptions, text.as_str()));
    [
        (SearchField::Name, name),
        (SearchField::FirstSentence, text.title.as_str()),
        (SearchField::FirstSentence, text.first_sentence.as_str()),
        (SearchField::OtherSentences, text.other_sentences.as_str()),
        (SearchField::ServerId, server_id),
    ]
    .into_iter()
    .chain(parameter_names)
    .chain(parameter_descriptions)
    .flat_map(|(field, text)| split_words(text).into_iter().map(move |word| (field, word)))
}

/// Returns the words whose parts are searched.
fn gram_words<'a>(
    name: &'a str,
    text: &'a DefinitionText,
) -> impl Iterator<Item = (SearchField, String)> {
    [(SearchField::Name, name), (SearchField::FirstSentence, text.first_sentence.as_str())]
        .into_iter()
        .flat_map(|(field, text)| split_words(text).into_iter().map(move |word| (field, word)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::limits::Limits;

    fn definition(name: &str, description: &str) -> ToolDefinition {
        let text = json!({"name": name, "description": description, "inputSchema": {}}).to_string();
        ToolDefinition::parse(&text, &Limits::default()).unwrap()
    }

    /// Indexes tools, each given by server, name and description.
    fn index_tools(tools: &[(&str, &str, &str)]) -> ToolIndex {
        let definitions: Vec<ToolDefinition> =
            tools.iter().map(|(_, name, description)| definition(name, description)).collect();
        let tools = tools.iter().zip(&definitions);
        ToolIndex::new(
            tools.map(|((server_id, ..), definition)| SearchableTool { server_id, definition }),
        )
    }

    fn find_names(index: &ToolIndex, query: &str) -> Vec<String> {
        let hits = index.search(query, usize::MAX);
        assert!(hits.iter().all(|hit| hit.score > 0.0 && hit.score.is_finite()));
        assert!(hits.is_sorted_by(|one, next| one.score >= next.score));
        hits.iter().map(|hit| format!("{}/{}", hit.key.server_id, hit.key.tool)).collect()
    }

    #[test]
    fn a_tool_is_found_by_its_words_their_groups_and_their_parts() {
        let index = index_tools(&[
            ("disk", "delete_file", "Delete a file."),
            ("clock", "current_time", "Tell the current time."),
            ("cluster", "scaleKubernetesDeployment", "Set replicas."),
        ]);
        for (query, name) in [
            ("deleting files", "disk/delete_file"),
            ("erase", "disk/delete_file"),
            ("disk", "disk/delete_file"),
            ("kubernets", "cluster/scaleKubernetesDeployment"),
        ] {
            assert_eq!(find_names(&index, query), [name], "{query}");
        }
    }

    #[test]
    fn a_tool_that_shares_nothing_with_the_query_is_left_out() {
        let index = index_tools(&[("a", "ping", "Test the connection to it.")]);
        for query in ["", "   ", "?!", "zebra", "is it the zebra", "position"] {
            assert!(find_names(&index, query).is_empty(), "{query}");
        }
        assert!(index_tools(&[]).search("ping", 10).is_empty());
    }

    #[test]
    fn an_exact_name_comes_first() {
        let index = index_tools(&[
            ("a", "list_list_list", "List list list."),
            ("b", "list", "Frobnicate widgets, then return everything in a very long list."),
            ("c", "list_all", "List."),
            ("d", "___", ""),
            ("e", "the", ""),
        ]);
        assert_eq!(find_names(&index, "list")[0], "b/list");
        assert_eq!(find_names(&index, " LIST ")[0], "b/list");
        assert_eq!(find_names(&index, "c__list_all")[0], "c/list_all");
        assert_eq!(find_names(&index, "___"), ["d/___"]);
        assert_eq!(find_names(&index, "the")[0], "e/the");
    }

    #[test]
    fn a_name_that_the_query_covers_comes_before_a_longer_one() {
        let index = index_tools(&[
            ("notes", "delete_history_of_note", "Delete a note."),
            ("notes", "delete_note", "Delete a note."),
        ]);
        for query in ["delete a note", "erase the memo"] {
            let names = find_names(&index, query);
            assert_eq!(names, ["notes/delete_note", "notes/delete_history_of_note"], "{query}");
        }
    }

    #[test]
    fn tools_that_fit_equally_well_are_in_the_order_of_their_names() {
        let sorted = [("a", "x_read", "Read."), ("b", "a_read", "Read."), ("b", "b_read", "Read.")];
        let mut tools = sorted;
        for _ in 0..tools.len() {
            tools.rotate_left(1);
            let names = find_names(&index_tools(&tools), "read");
            assert_eq!(names, ["a/x_read", "b/a_read", "b/b_read"]);
        }
        assert_eq!(index_tools(&tools).search("read", 2).len(), 2);
    }

    #[test]
    fn the_end_of_a_long_query_is_not_read() {
        let index = index_tools(&[("a", "ping", "")]);
        let filler = "z ".repeat(490);
        assert_eq!(find_names(&index, &format!("{filler} ping")).len(), 1);
        assert!(find_names(&index, &format!("{filler}{filler} ping")).is_empty());

        let words = |count: usize| (0..count).map(|n| format!("{n} ")).collect::<String>();
        assert_eq!(find_names(&index, &(words(49) + "ping")).len(), 1);
        assert!(find_names(&index, &(words(50) + "ping")).is_empty());
    }

    #[test]
    fn the_end_of_a_long_description_is_not_read() {
        let description = |length: usize| format!("First. {} zebra", "y ".repeat(length / 2));
        assert_eq!(find_names(&index_tools(&[("a", "b", &description(4000))]), "zebra").len(), 1);
        assert!(find_names(&index_tools(&[("a", "b", &description(4096))]), "zebra").is_empty());
    }

    #[test]
    fn repeating_a_word_gains_little() {
        let spam = format!("Does anything. {}", "invoice ".repeat(400));
        let index = index_tools(&[
            ("honest", "create_invoice", "Create an invoice."),
            ("spam", "anything", &spam),
        ]);
        assert_eq!(find_names(&index, "create an invoice")[0], "honest/create_invoice");
        assert_eq!(find_names(&index, "invoice")[0], "honest/create_invoice");
    }
}
