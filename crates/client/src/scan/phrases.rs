//! Rules for phrases: sequences of words with gaps, as `phrases.list` describes them.
//!
//! All phrases are searched at once, word by word. For each phrase only the latest place of each
//! beginning of it is kept: a gap is limited to one side, so an earlier place can never match where
//! the latest does not. The time is thus linear whatever the text is.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

use super::definition_texts::ServerText;
use super::excerpt::make_excerpt;
use super::folded_words::{FoldedWord, fold_words};
use super::shadowing::ForeignTools;
use super::{ScanRule, ScanSeverity, TextFinding};

static PHRASE_BOOK: LazyLock<PhraseBook> =
    LazyLock::new(|| PhraseBook::parse(include_str!("phrases.list")));

/// Distance between the words of two texts.
const TEXT_DISTANCE: usize = 1000;
/// Words before a phrase that can say that it is only quoted.
const CONTEXT_WORDS: usize = 14;
/// Words that turn the phrase after them into its opposite.
const NEGATIONS: [&str; 7] = ["not", "never", "dont", "cannot", "without", "nor", "doesnt"];
/// Tags in which attackers write orders.
const TAGS: [&str; 5] = ["important", "critical", "urgent", "priority", "admin"];
/// Tags for text that is not meant for the user.
const HIDING_TAGS: [&str; 4] = ["hidden", "secret", "system", "sys"];
/// Verbs of tools that look for orders in texts.
const DETECTIONS: [&str; 30] = [
    "detect",
    "detects",
    "detected",
    "detection",
    "flag",
    "flags",
    "flagged",
    "scan",
    "scans",
    "block",
    "blocks",
    "filter",
    "filters",
    "classify",
    "classifies",
    "identify",
    "identifies",
    "recognize",
    "prevent",
    "prevents",
    "reject",
    "rejects",
    "refuse",
    "refuses",
    "explain",
    "explains",
    "explaining",
    "analyze",
    "analyzes",
    "injection",
];
/// Words for a text that is not trusted and gives orders.
const REPORTED_ORDERS: [&str; 8] =
    ["tells", "asks", "tries", "says", "telling", "asking", "trying", "claims"];

/// Phrases, and where each word occurs in them.
#[derive(Debug, Default)]
struct PhraseBook {
    phrases: Vec<Phrase>,
    /// Phrase and element of each word; of a phrase, later elements first.
    places: HashMap<String, Vec<(usize, usize)>>,
}

#[derive(Debug)]
struct Phrase {
    rule: ScanRule,
    severity: ScanSeverity,
    scope: PhraseScope,
    /// Whether its first word is a negation, so that one before it has no meaning.
    is_negative: bool,
    /// Most words before each element.
    gaps: Vec<usize>,
}

/// Texts in which a phrase is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PhraseScope {
    All,
    Parameters,
    Decoded,
}

/// Latest place of the beginning of a phrase.
#[derive(Debug, Clone, Copy)]
struct PhrasePrefix {
    /// Position of its last word.
    position: usize,
    /// Index of its first word.
    first_word: usize,
}

/// Search for all phrases.
#[derive(Debug)]
pub(super) struct PhraseScanner {
    /// By phrase and element.
    prefixes: Vec<Vec<Option<PhrasePrefix>>>,
    position: usize,
}

/// Phrase found in a text.
#[derive(Debug)]
struct PhraseMatch {
    phrase: usize,
    first_word: usize,
    range: Range<usize>,
}

impl PhraseBook {
    /// Parses a list. Lines are `$set word word`, `[rule]`, or a phrase.
    fn parse(list: &str) -> PhraseBook {
        let mut book = PhraseBook::default();
        let mut sets: HashMap<&str, Vec<&str>> = HashMap::new();
        let mut rule = ScanRule::InjectedOrder;
        for line in list.lines() {
            let line = line.split(" # ").next().unwrap_or_default().trim();
            let mut fields = line.split_whitespace();
            match fields.next() {
                None | Some("#") => {}
                Some("[tool_shadowing]") => rule = ScanRule::ToolShadowing,
                Some(name) if name.starts_with('$') => {
                    sets.entry(name).or_default().extend(fields);
                }
                Some(kind) => book.add_phrase(rule, kind, fields, &sets),
            }
        }
        for places in book.places.values_mut() {
            places.sort_by_key(|(phrase, element)| (*phrase, usize::MAX - element));
            places.dedup();
        }
        book
    }

    fn add_phrase<'a>(
        &mut self,
        rule: ScanRule,
        kind: &str,
        elements: impl Iterator<Item = &'a str>,
        sets: &HashMap<&str, Vec<&'a str>>,
    ) {
        let (mut gaps, mut gap) = (Vec::new(), 0);
        let mut is_negative = false;
        for element in elements {
            if let Some(count) = element.strip_prefix("..").and_then(|count| count.parse().ok()) {
                gap = count;
                continue;
            }
            for word in element.split('|') {
                let single = [word];
                let words = sets.get(word).map_or(&single[..], Vec::as_slice);
                for word in words {
                    is_negative |= gaps.is_empty() && NEGATIONS.contains(word);
                    let place = (self.phrases.len(), gaps.len());
                    for form in word_forms(word) {
                        self.places.entry(folded_form(&form)).or_default().push(place);
                    }
                }
            }
            gaps.push(gap);
            gap = 0;
        }
        let severity =
            if kind.starts_with("hard") { ScanSeverity::Hard } else { ScanSeverity::Soft };
        let scope = match kind.split_once('-') {
            Some((_, "parameter")) => PhraseScope::Parameters,
            Some((_, "encoded")) => PhraseScope::Decoded,
            _ => PhraseScope::All,
        };
        self.phrases.push(Phrase { rule, severity, scope, is_negative, gaps });
    }
}

/// Returns the forms of a word of the list: `include*` means four.
fn word_forms(word: &str) -> Vec<String> {
    let Some(verb) = word.strip_suffix('*') else { return vec![word.to_owned()] };
    let stem = verb.strip_suffix('e').unwrap_or(verb);
    vec![verb.to_owned(), format!("{verb}s"), format!("{stem}ing"), format!("{stem}ed")]
}

/// Returns a word of the list as texts have it.
fn folded_form(word: &str) -> String {
    match word.starts_with('@') {
        true => word.to_owned(),
        false => fold_words(word).into_iter().map(|folded| folded.text).collect(),
    }
}

impl PhraseScanner {
    pub(super) fn new() -> PhraseScanner {
        let prefixes = PHRASE_BOOK.phrases.iter().map(|phrase| vec![None; phrase.gaps.len()]);
        PhraseScanner { prefixes: prefixes.collect(), position: 0 }
    }

    /// Finds orders and interference with foreign tools: of each rule the first hard phrase, or else
    /// the first soft one.
    pub(super) fn find_phrases(
        &mut self,
        text: &ServerText<'_>,
        foreign: &ForeignTools,
    ) -> Vec<TextFinding> {
        let words = fold_words(text.text);
        let mut found: Vec<TextFinding> = Vec::new();
        for matched in self.match_words(text.text, &words, Some(foreign)) {
            let Some(phrase) = PHRASE_BOOK.phrases.get(matched.phrase) else { continue };
            match phrase.scope {
                PhraseScope::Decoded => continue,
                PhraseScope::Parameters if !text.is_about_parameter => continue,
                PhraseScope::Parameters | PhraseScope::All => {}
            }
            let is_quoted = is_quoted(text.text, &words, &matched);
            let severity = if is_quoted { ScanSeverity::Soft } else { phrase.severity };
            let known = found.iter().position(|finding| finding.rule == phrase.rule);
            let excerpt = || make_excerpt(text.text, &matched.range);
            match known.and_then(|known| found.get_mut(known)) {
                None => found.push(TextFinding { rule: phrase.rule, severity, excerpt: excerpt() }),
                Some(known) if severity < known.severity => {
                    (known.severity, known.excerpt) = (severity, excerpt());
                }
                Some(_) => {}
            }
        }
        found
    }

    /// Returns where a decoded text gives hard orders.
    pub(super) fn find_orders(&mut self, text: &str) -> Vec<Range<usize>> {
        let is_hard = |matched: &PhraseMatch| {
            let phrase = PHRASE_BOOK.phrases.get(matched.phrase);
            phrase.is_some_and(|phrase| phrase.severity == ScanSeverity::Hard)
        };
        let found = self.match_words(text, &fold_words(text), None);
        found.into_iter().filter(is_hard).map(|matched| matched.range).collect()
    }

    /// Returns the first place of each phrase in a text.
    fn match_words(
        &mut self,
        text: &str,
        words: &[FoldedWord],
        foreign: Option<&ForeignTools>,
    ) -> Vec<PhraseMatch> {
        let mut found: HashMap<usize, PhraseMatch> = HashMap::new();
        self.position += TEXT_DISTANCE;
        let mut mention_end = 0;
        for (index, word) in words.iter().enumerate() {
            if index < mention_end {
                continue;
            }
            self.position += word.distance;
            let mention = foreign.and_then(|foreign| foreign.find_mention(text, words, index));
            if let Some((_, count)) = mention {
                mention_end = index + count;
            }
            let plain = mention.map_or(word.text.as_str(), |(term, _)| term);
            let terms = tag_terms(text, word).iter().copied().chain([plain]);
            self.advance_phrases(terms, index, |phrase, first_word| {
                let is_new = !found.contains_key(&phrase);
                if is_new && !is_negated(phrase, words, first_word) {
                    let start = words.get(first_word).map_or(word.start, |first| first.start);
                    let range = start..word.end;
                    found.insert(phrase, PhraseMatch { phrase, first_word, range });
                }
            });
        }
        let mut found: Vec<PhraseMatch> = found.into_values().collect();
        found.sort_by_key(|matched| (matched.range.start, matched.phrase));
        found
    }

    /// Continues all phrases that have a word, and reports those that end with it.
    fn advance_phrases<'t>(
        &mut self,
        terms: impl Iterator<Item = &'t str>,
        index: usize,
        mut report: impl FnMut(usize, usize),
    ) {
        let position = self.position;
        let places = terms.filter_map(|term| PHRASE_BOOK.places.get(term)).flatten();
        for (phrase, element) in places.copied() {
            let (Some(prefixes), Some(rules)) =
                (self.prefixes.get_mut(phrase), PHRASE_BOOK.phrases.get(phrase))
            else {
                continue;
            };
            let before = match element {
                0 => Some(PhrasePrefix { position, first_word: index }),
                _ => prefixes.get(element - 1).copied().flatten().filter(|before| {
                    let gap = rules.gaps.get(element).copied().unwrap_or(0);
                    position - before.position <= gap + 1
                }),
            };
            let Some(before) = before else { continue };
            let prefix = PhrasePrefix { position, first_word: before.first_word };
            if let Some(place) = prefixes.get_mut(element) {
                *place = Some(prefix);
            }
            if element + 1 == rules.gaps.len() {
                report(phrase, prefix.first_word);
            }
        }
    }
}

/// Returns the terms for a word that is a tag or begins a comment.
fn tag_terms(text: &str, word: &FoldedWord) -> &'static [&'static str] {
    let before = text.get(..word.start).unwrap_or_default();
    let after = text.get(word.end..).unwrap_or_default();
    let is_hidden = HIDING_TAGS.contains(&word.text.as_str());
    if before.trim_end_matches(' ').ends_with("<!--") {
        &["@comment"]
    } else if before.ends_with("</") && after.starts_with('>') && is_hidden {
        &["@close"]
    } else if before.ends_with('<') && after.starts_with('>')
        || before.ends_with('[') && after.starts_with(']')
    {
        match TAGS.contains(&word.text.as_str()) {
            _ if is_hidden => &["@tag", "@hidden"],
            true => &["@tag"],
            false => &[],
        }
    } else {
        &[]
    }
}

/// Tells whether the word before a phrase turns it into its opposite.
fn is_negated(phrase: usize, words: &[FoldedWord], first_word: usize) -> bool {
    let is_negative = PHRASE_BOOK.phrases.get(phrase).is_some_and(|phrase| phrase.is_negative);
    let starts_sentence = words.get(first_word).is_none_or(|word| word.distance > 1);
    let before = first_word.checked_sub(1).and_then(|before| words.get(before));
    !is_negative
        && !starts_sentence
        && before.is_some_and(|before| NEGATIONS.contains(&before.text.as_str()))
}

/// Tells whether a text only speaks about an order: it is in quotation marks after a verb such as
/// `detect`, or something that is not trusted gives it.
fn is_quoted(text: &str, words: &[FoldedWord], matched: &PhraseMatch) -> bool {
    let context = words.get(matched.first_word.saturating_sub(CONTEXT_WORDS)..matched.first_word);
    let has = |list: &[&str]| {
        context.unwrap_or_default().iter().any(|word| list.contains(&word.text.as_str()))
    };
    // The phrase may begin with the second or third word of the quotation.
    let first_words = words.get(matched.first_word.saturating_sub(2)..=matched.first_word);
    let in_quotes = first_words.unwrap_or_default().iter().any(|word| {
        let before = text.get(..word.start).unwrap_or_default();
        before.ends_with(['"', '“', '\'', '‘', '`', '«', '„'])
    });
    // "Analyzes prompts that ignore previous instructions."
    let is_relative = matched.first_word.checked_sub(1).and_then(|before| words.get(before));
    let is_relative =
        is_relative.is_some_and(|word| ["that", "which"].contains(&word.text.as_str()));
    (in_quotes || is_relative) && has(&DETECTIONS)
        || has(&["if", "when", "whether"]) && has(&REPORTED_ORDERS)
}
