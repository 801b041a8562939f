//! Scores by BM25F: a word counts by the field in which it occurs, and the more, the fewer tools
//! have it.

use std::collections::HashMap;

/// BM25's `k1`: the higher, the more further occurrences of a word add.
const SATURATION: f32 = 1.2;
/// Most occurrences of a word in a field that are counted, so that a server gains little by
/// repeating it.
const MAX_OCCURRENCES: f32 = 3.0;
/// BM25's `b`: how much a word in a long field is discounted, from 0 to 1.
const LENGTH_DISCOUNT: f32 = 0.75;

/// Field of a tool that is searched.
#[derive(Debug, Clone, Copy)]
pub(super) enum SearchField {
    Name,
    FirstSentence,
    OtherSentences,
    ParameterNames,
    ParameterDescriptions,
    ServerId,
}

const FIELD_COUNT: usize = 6;

/// Weight of each part of a score.
#[derive(Debug, Clone)]
pub(super) struct SearchWeights {
    /// Weights of the fields, in their order.
    pub(super) fields: [f32; FIELD_COUNT],
    /// Weight of a word of the same group, against the word itself.
    pub(super) related_word: f32,
    /// Weight of the character 4-grams of a word, against the word itself.
    pub(super) four_grams: f32,
    /// How much the score of a tool rises if the query covers all words of its name.
    pub(super) name_share: f32,
}

impl Default for SearchWeights {
    fn default() -> SearchWeights {
        SearchWeights {
            fields: [3.0, 1.0, 1.0, 0.7, 0.4, 1.0],
            related_word: 0.6,
            four_grams: 0.5,
            name_share: 1.0,
        }
    }
}

/// Tools that have a term, each with the weight of the term in it.
#[derive(Debug, Default)]
pub(super) struct TermIndex {
    postings: HashMap<String, Vec<Posting>>,
    tool_count: usize,
}

#[derive(Debug, Clone, Copy)]
struct Posting {
    tool: usize,
    /// Between 0 and 1.
    weight: f32,
}

/// Collects the terms of all tools.
#[derive(Debug, Default)]
pub(super) struct TermIndexBuilder {
    tools: Vec<HashMap<String, [f32; FIELD_COUNT]>>,
    lengths: Vec<[f32; FIELD_COUNT]>,
}

impl TermIndexBuilder {
    /// Adds the next tool.
    pub(super) fn add_tool(&mut self, terms: impl Iterator<Item = (SearchField, String)>) {
        let (mut counts, mut length) = (HashMap::new(), [0.0; FIELD_COUNT]);
        for (field, term) in terms {
            let field = field as usize;
            counts.entry(term).or_insert([0.0; FIELD_COUNT])[field] += 1.0;
            length[field] += 1.0;
        }
        self.tools.push(counts);
        self.lengths.push(length);
    }

    /// Weighs all terms, which requires the mean length of each field.
    pub(super) fn build(self, field_weights: &[f32; FIELD_COUNT]) -> TermIndex {
        let tool_count = self.tools.len();
        let mut mean_length = [0.0; FIELD_COUNT];
        for (field, mean) in mean_length.iter_mut().enumerate() {
            let sum: f32 = self.lengths.iter().map(|length| length[field]).sum();
            *mean = (sum / tool_count.max(1) as f32).max(1.0);
        }
        let mut postings: HashMap<String, Vec<Posting>> = HashMap::new();
        for (tool, (counts, length)) in self.tools.into_iter().zip(&self.lengths).enumerate() {
            for (term, counts) in counts {
                let frequency: f32 = (0..FIELD_COUNT)
                    .map(|field| {
                        let relative = length[field] / mean_length[field];
                        let discount = 1.0 - LENGTH_DISCOUNT + LENGTH_DISCOUNT * relative;
                        field_weights[field] * counts[field].min(MAX_OCCURRENCES) / discount
                    })
                    .sum();
                let weight = frequency / (SATURATION + frequency);
                postings.entry(term).or_default().push(Posting { tool, weight });
            }
        }
        TermIndex { postings, tool_count }
    }
}

impl TermIndex {
    /// Returns the tools that have a term, with its score in each.
    pub(super) fn find_term(&self, term: &str) -> impl Iterator<Item = (usize, f32)> {
        let postings = self.postings.get(term).map_or(&[][..], Vec::as_slice);
        let (with, all) = (postings.len() as f32, self.tool_count as f32);
        let rarity = (1.0 + (all - with + 0.5) / (with + 0.5)).ln();
        postings.iter().map(move |posting| (posting.tool, rarity * posting.weight))
    }
}

/// Scores of tools. Clearing takes only as long as the tools that have a score.
#[derive(Debug)]
pub(super) struct ScoreBoard {
    scores: Vec<f32>,
    scored: Vec<usize>,
}

impl ScoreBoard {
    pub(super) fn new(tool_count: usize) -> ScoreBoard {
        ScoreBoard { scores: vec![0.0; tool_count], scored: Vec::new() }
    }

    pub(super) fn add_score(&mut self, tool: usize, score: f32) {
        self.update_score(tool, |old| old + score);
    }

    pub(super) fn raise_score(&mut self, tool: usize, score: f32) {
        self.update_score(tool, |old| old.max(score));
    }

    fn update_score(&mut self, tool: usize, new_score: impl Fn(f32) -> f32) {
        if let Some(score) = self.scores.get_mut(tool) {
            if *score == 0.0 {
                self.scored.push(tool);
            }
            *score = new_score(*score);
        }
    }

    /// Removes and returns all scores, in the order in which they were first set.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (usize, f32)> {
        let scores = &mut self.scores;
        self.scored.drain(..).filter_map(|tool| {
            let score = std::mem::take(scores.get_mut(tool)?);
            (score > 0.0).then_some((tool, score))
        })
    }
}
