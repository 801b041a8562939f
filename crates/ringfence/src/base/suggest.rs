//! Suggestions for "Did you mean …?": finds the known name that a mistyped one was probably meant
//! to be.

use strsim::osa_distance;

/// Returns the candidate closest to `name`, if one is close enough.
pub fn suggest_name<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    if name.len() > 64 {
        return None;
    }
    candidates
        .iter()
        .map(|candidate| (osa_distance(name, candidate), *candidate))
        // One slip, or more than half of the name is right: `fooo` is not a mistyped `root`.
        .filter(|(distance, candidate)| {
            let length = name.chars().count();
            *distance <= 1 + candidate.len() / 4
                && (*distance <= length / 2 && *distance == 1 || distance * 2 < length)
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns up to `max_count` close candidates, the closest first. Case and the extension carry
/// little weight: `readme.md` is close to `README.md`, and `main.ts` to `main.tsx` and `main.js`.
pub fn suggest_names<'a>(name: &str, candidates: &[&'a str], max_count: usize) -> Vec<&'a str> {
    if name.len() > 128 {
        return Vec::new();
    }
    let lower = name.to_lowercase();
    let stem = |name: &str| name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_owned();
    let rank_candidate = |candidate: &&'a str| {
        let other = candidate.to_lowercase();
        // The distance is at least the difference in length, which is far cheaper to compute.
        if other.len().abs_diff(lower.len()) > 2 + other.len() / 3 {
            return None;
        }
        let distance = osa_distance(&lower, &other);
        let same_stem = !stem(&lower).is_empty() && stem(&lower) == stem(&other);
        (distance <= 1 + other.chars().count() / 4 || same_stem).then_some((distance, *candidate))
    };
    let mut ranked: Vec<_> = candidates.iter().filter_map(rank_candidate).collect();
    ranked.sort();
    ranked.into_iter().take(max_count).map(|(_, candidate)| candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        assert_eq!(suggest_name("expiry", &["terminal", "expiry_s"]), Some("expiry_s"));
        assert_eq!(suggest_name("scr", &["src", "x"]), Some("src"));
        assert_eq!(suggest_name("fooo", &["root", "log"]), None);
        assert_eq!(suggest_name("al", &["core", "all"]), Some("all"));
        assert_eq!(suggest_name("pth", &["path", "x"]), Some("path"));
        assert_eq!(suggest_name("colour", &["terminal", "expiry_s"]), None);
        assert_eq!(suggest_name(&"x".repeat(65), &["terminal"]), None);
    }

    #[test]
    fn names_of_files_are_near_by_case_and_ending_too() {
        let names = ["README.md", "main.rs", "main.tsx", "mine.rs", "Cargo.toml", "a", "b"];
        assert_eq!(suggest_names("readme.md", &names, 3), ["README.md"]);
        assert_eq!(suggest_names("main.ts", &names, 3), ["main.rs", "main.tsx"]);
        assert_eq!(suggest_names("main.ts", &names, 1), ["main.rs"]);
        assert_eq!(suggest_names("nothing-like-it", &names, 3), [""; 0]);
    }
}
