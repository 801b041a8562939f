//! Quality of the search on the labelled queries in `tests/search/`.
//!
//! Choose weights and word groups by `dev.jsonl` alone. Never tune by the misses of `test.jsonl` or
//! `blind.jsonl`, or they no longer measure anything. The queries of `blind.jsonl` are in everyday
//! words and avoid those of the definitions.

use std::path::Path;
use std::time::Instant;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::*;
use crate::limits::Limits;

#[derive(Deserialize)]
struct LabelledTool {
    server: String,
    definition: Box<RawValue>,
}

#[derive(Deserialize)]
struct LabelledQuery {
    query: String,
    /// Names of the tools that serve the query.
    relevant: Vec<String>,
}

fn read_lines<T: for<'de> Deserialize<'de>>(file: &str) -> Vec<T> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/search").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn read_tools() -> Vec<(String, ToolDefinition)> {
    let parse = |text: &str| ToolDefinition::parse(text, &Limits::default()).unwrap();
    let tools: Vec<LabelledTool> = read_lines("tools.jsonl");
    tools.into_iter().map(|tool| (tool.server, parse(tool.definition.get()))).collect()
}

fn index_tools(tools: &[(String, ToolDefinition)], weights: SearchWeights) -> ToolIndex {
    let tools =
        tools.iter().map(|(server_id, definition)| SearchableTool { server_id, definition });
    ToolIndex::with_weights(tools, weights)
}

#[derive(Debug, Default)]
struct SearchQuality {
    /// Share of the relevant tools among the first five.
    recall_at_5: f64,
    recall_at_10: f64,
    /// Mean of 1 / rank of the first relevant tool; 0 below the first ten.
    reciprocal_rank: f64,
}

fn measure_quality(index: &ToolIndex, queries: &[LabelledQuery]) -> SearchQuality {
    let mut quality = SearchQuality::default();
    let share = 1.0 / queries.len() as f64;
    for LabelledQuery { query, relevant } in queries {
        let hits = index.search(query, 10);
        let is_relevant: Vec<bool> = hits
            .iter()
            .map(|hit| relevant.contains(&namespaced_name(&hit.key.server_id, &hit.key.tool)))
            .collect();
        let recall = |depth: usize| {
            let found = is_relevant.iter().take(depth).filter(|relevant| **relevant).count();
            found as f64 / relevant.len() as f64
        };
        quality.recall_at_5 += share * recall(5);
        quality.recall_at_10 += share * recall(10);
        if let Some(position) = is_relevant.iter().position(|relevant| *relevant) {
            quality.reciprocal_rank += share / (position + 1) as f64;
        }
    }
    quality
}

fn print_quality(title: &str, quality: &SearchQuality) {
    let SearchQuality { recall_at_5, recall_at_10, reciprocal_rank } = quality;
    println!("{title:<32} R@5 {recall_at_5:.3}  R@10 {recall_at_10:.3}  MRR {reciprocal_rank:.3}");
}

/// Prints how much each part of the search contributes.
#[test]
#[ignore = "prints figures"]
fn print_contribution_of_each_part() {
    let tools = read_tools();
    let queries = read_lines("dev.jsonl");
    let weights = SearchWeights::default();
    let no_grams = SearchWeights { four_grams: 0.0, ..weights.clone() };
    let words_only = SearchWeights { related_word: 0.0, ..no_grams.clone() };
    for (title, weights) in [
        ("all fields alike", SearchWeights { fields: [1.0; 6], ..words_only.clone() }),
        ("weighted fields", words_only.clone()),
        ("weighted fields, groups", no_grams),
        ("weighted fields, 4-grams", SearchWeights { related_word: 0.0, ..weights.clone() }),
        (
            "all, without parameters",
            SearchWeights { fields: [3.0, 1.0, 1.0, 0.0, 0.0, 1.0], ..weights.clone() },
        ),
        (
            "all, without server",
            SearchWeights { fields: [3.0, 1.0, 1.0, 0.7, 0.4, 0.0], ..weights.clone() },
        ),
        (
            "all, name as the others",
            SearchWeights { fields: [1.0, 1.0, 1.0, 0.7, 0.4, 1.0], ..weights.clone() },
        ),
        ("all, without share of name", SearchWeights { name_share: 0.0, ..weights.clone() }),
        ("all", weights),
    ] {
        print_quality(title, &measure_quality(&index_tools(&tools, weights), &queries));
    }
}

#[test]
fn search_quality_stays_above_its_floors() {
    let index = index_tools(&read_tools(), SearchWeights::default());
    print_quality("dev", &measure_quality(&index, &read_lines("dev.jsonl")));
    print_quality("blind", &measure_quality(&index, &read_lines("blind.jsonl")));
    let quality = measure_quality(&index, &read_lines("test.jsonl"));
    print_quality("test", &quality);
    assert!(quality.recall_at_5 >= 0.82, "{quality:?}");
    assert!(quality.recall_at_10 >= 0.91, "{quality:?}");
    assert!(quality.reciprocal_rank >= 0.66, "{quality:?}");
}

#[test]
fn labels_name_tools_that_exist() {
    let tools = read_tools();
    let names: Vec<String> =
        tools.iter().map(|(server, tool)| namespaced_name(server, &tool.name)).collect();
    for file in ["dev.jsonl", "test.jsonl", "blind.jsonl"] {
        for LabelledQuery { query, relevant } in read_lines(file) {
            assert!(!relevant.is_empty(), "{query}");
            assert!(relevant.iter().all(|name| names.contains(name)), "{query}");
        }
    }
}

/// Prints how long it takes to index 1,000 tools, and to search them.
#[test]
#[ignore = "prints figures; use --release"]
fn print_times_of_a_thousand_tools() {
    let tools: Vec<(String, ToolDefinition)> = (0..)
        .flat_map(|copy| {
            read_tools().into_iter().map(move |(id, tool)| (format!("{id}{copy}"), tool))
        })
        .take(1000)
        .collect();
    let started = Instant::now();
    let index = index_tools(&tools, SearchWeights::default());
    println!("index of 1,000 tools: {:?}", started.elapsed());

    let mut times = Vec::new();
    for LabelledQuery { query, .. } in read_lines("dev.jsonl") {
        let started = Instant::now();
        std::hint::black_box(index.search(&query, 10));
        times.push(started.elapsed());
    }
    times.sort();
    println!("query: median {:?}, slowest {:?}", times[times.len() / 2], times[times.len() - 1]);

    let words: Vec<String> = tools.iter().flat_map(|(_, tool)| split_words(&tool.text)).collect();
    let query = words.join(" ");
    let started = Instant::now();
    std::hint::black_box(index.search(&query, 10));
    println!("longest query: {:?}", started.elapsed());
}

/// Prints the queries for development whose tools are not first, with what is.
#[test]
#[ignore = "prints what to improve"]
fn print_misses_of_the_development_set() {
    let index = index_tools(&read_tools(), SearchWeights::default());
    for LabelledQuery { query, relevant } in read_lines("dev.jsonl") {
        let names: Vec<String> = index
            .search(&query, 200)
            .iter()
            .map(|hit| namespaced_name(&hit.key.server_id, &hit.key.tool))
            .collect();
        let rank = names.iter().position(|name| relevant.contains(name)).map(|rank| rank + 1);
        if rank != Some(1) {
            let first = names.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
            println!("{rank:?} {query:?} {relevant:?}: {first}");
        }
    }
}
