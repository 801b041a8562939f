//! Words of a text: split, in lower case, and without their endings.

/// Words of a query that say nothing about a tool.
const STOP_WORDS: &str = "
    a about am an and any are as at be been but by can could did do does for from had has have
    how i if in into is it its let me my need of on one or our please should so some someone
    something that the their them there these they this those to tool us want was we were what
    when where which who why will with would you your
    again also another at before both but down each else every here just like lot many more most
    much no not now off only other out over really still than then too two up via very while without
    yet
";

/// Splits a text into lower-case words: at every other character than a letter or digit, between
/// letters and digits, and where a change of case begins a word. `getHTTPStatus2` has four words.
///
/// Letters after an apostrophe (`what's`) are an ending and are dropped.
pub(super) fn split_words(text: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let (mut previous, mut in_ending) = (None::<char>, false);
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        if !c.is_alphanumeric() {
            in_ending = matches!(c, '\'' | '’') && previous.is_some_and(char::is_alphanumeric);
            finish_word(&mut words, &mut word);
        } else if !in_ending {
            let next_is_lower = characters.peek().is_some_and(|next| next.is_lowercase());
            if previous.is_some_and(|previous| begins_word(previous, c, next_is_lower)) {
                finish_word(&mut words, &mut word);
            }
            word.extend(c.to_lowercase());
        }
        previous = Some(c);
    }
    finish_word(&mut words, &mut word);
    words
}

fn finish_word(words: &mut Vec<String>, word: &mut String) {
    if !word.is_empty() {
        words.push(std::mem::take(word));
    }
}

fn begins_word(previous: char, c: char, next_is_lower: bool) -> bool {
    previous.is_numeric() != c.is_numeric()
        || c.is_uppercase() && (previous.is_lowercase() || next_is_lower)
}

/// Tells whether a word of a query says nothing about a tool.
pub(super) fn is_stop_word(word: &str) -> bool {
    STOP_WORDS.split_whitespace().any(|stop_word| stop_word == word)
}

/// Removes the usual English endings of a word, so that `creates`, `creating` and `creation` become
/// equal. The result need not be a word.
pub(super) fn stem_word(word: &str) -> String {
    let singular = match word {
        _ if !word.is_ascii() => return word.to_owned(),
        _ if word.ends_with("ss") || word.ends_with("us") || word.ends_with("is") => {
            word.to_owned()
        }
        _ => match (strip_ending(word, "ies", 2), strip_ending(word, "s", 3)) {
            (Some(stem), _) => format!("{stem}y"),
            (None, Some(stem)) => stem.to_owned(),
            (None, None) => word.to_owned(),
        },
    };
    let stem = strip_verb_ending(&singular);
    let stem = strip_ending(&stem, "e", 3).unwrap_or(&stem);
    // `cancelled` and `cancel`, `install` and `installed`.
    if stem.len() >= 7 && stem.ends_with("ll") {
        stem.trim_end_matches('l').to_owned() + "l"
    } else {
        stem.to_owned()
    }
}

fn strip_verb_ending(word: &str) -> String {
    for ending in ["ation", "ating", "ated", "ate"] {
        if let Some(stem) = strip_ending(word, ending, 3) {
            return stem.to_owned();
        }
    }
    if let Some(stem) = strip_ending(word, "ied", 2) {
        return format!("{stem}y");
    }
    if let Some(stem) = strip_ending(word, "ion", 4).filter(|stem| stem.ends_with(['s', 't'])) {
        return stem.to_owned();
    }
    // `payment` and `management`, but not `document`.
    if let Some(stem) =
        strip_ending(word, "ment", 3).filter(|stem| !stem.ends_with(['a', 'i', 'o', 'u']))
    {
        return stem.to_owned();
    }
    for ending in ["ing", "ed"] {
        if let Some(stem) =
            strip_ending(word, ending, 3).filter(|stem| ending == "ing" || !stem.ends_with('e'))
        {
            return strip_double_consonant(stem).to_owned();
        }
    }
    strip_ending(word, "ly", 4).unwrap_or(word).to_owned()
}

/// Returns the word without an ending, if at least `least` letters and a vowel are left.
fn strip_ending<'a>(word: &'a str, ending: &str, least: usize) -> Option<&'a str> {
    let stem = word.strip_suffix(ending)?;
    (stem.len() >= least && stem.contains(['a', 'e', 'i', 'o', 'u', 'y'])).then_some(stem)
}

/// Turns `committ` into `commit`. Words such as `call`, `pass` and `buzz` keep both letters.
fn strip_double_consonant(stem: &str) -> &str {
    match stem.as_bytes() {
        [.., before, last]
            if before == last && !matches!(last, b'l' | b's' | b'z' | b'e' | b'o') =>
        {
            stem.get(..stem.len() - 1).unwrap_or(stem)
        }
        _ => stem,
    }
}

/// Returns all runs of four characters of a word, with a mark at both of its ends.
pub(super) fn four_grams(word: &str) -> Vec<String> {
    let marked: Vec<char> = std::iter::once('^').chain(word.chars()).chain(['$']).collect();
    marked.windows(4).map(|gram| gram.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_end_where_case_digits_and_signs_say_so() {
        for (text, words) in [
            ("read_file", "read file"),
            ("list-events.v2", "list events v 2"),
            ("getHTTPStatus2", "get http status 2"),
            ("base64Encode", "base 64 encode"),
            ("What's in Anna’s *inbox*?", "what in anna inbox"),
            ("'quoted' words", "quoted words"),
            ("Größe ändern", "größe ändern"),
            ("__", ""),
        ] {
            assert_eq!(split_words(text).join(" "), words, "{text}");
        }
    }

    #[test]
    fn forms_of_a_word_have_one_stem() {
        for forms in [
            "create creates created creating creation",
            "migrate migration migrations migrating",
            "query queries queried querying",
            "commit commits committed committing",
            "delete deletes deleted deletion",
            "branch branches",
            "process processes processing",
            "cancel cancelled cancelling canceled",
            "install installs installed installation",
            "deploy deploys deployment",
            "document documents documentation",
            "file files",
            "recent recently",
        ] {
            let stems: Vec<String> = forms.split(' ').map(stem_word).collect();
            assert!(stems.iter().all(|stem| *stem == stems[0]), "{forms}: {stems:?}");
        }
    }

    #[test]
    fn words_that_only_look_inflected_stay_apart() {
        for (one, other) in
            [("file", "fill"), ("status", "state"), ("string", "str"), ("date", "data")]
        {
            assert_ne!(stem_word(one), stem_word(other));
        }
        for word in ["status", "string", "access", "speed", "image2", "größen", "s", ""] {
            assert_eq!(stem_word(word), word);
        }
    }

    #[test]
    fn stop_words_are_whole_words() {
        assert!(is_stop_word("the") && is_stop_word("a") && is_stop_word("your"));
        assert!(!is_stop_word("delete") && !is_stop_word("th") && !is_stop_word(""));
    }

    #[test]
    fn grams_know_where_a_word_ends() {
        assert_eq!(four_grams("mail"), ["^mai", "mail", "ail$"]);
        assert_eq!(four_grams("pr"), ["^pr$"]);
        assert!(four_grams("a").is_empty());
    }
}
