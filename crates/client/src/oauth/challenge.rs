//! The `WWW-Authenticate` header of a refusal.

/// Longest header that is read.
const MAX_CHALLENGE_BYTES: usize = 8 << 10;
/// Scopes of one challenge.
const MAX_SCOPES: usize = 64;

/// Parameters of a `Bearer` challenge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BearerChallenge {
    pub(super) resource_metadata: Option<String>,
    pub(super) scopes: Vec<String>,
    pub(super) error: Option<String>,
}

impl BearerChallenge {
    /// Reads the first `Bearer` challenge of a header, which may list several schemes. Values are
    /// read as the grammar says, not searched for: a description may contain `scope=`.
    pub(super) fn parse(header: &str) -> BearerChallenge {
        let mut challenge = BearerChallenge::default();
        if header.len() > MAX_CHALLENGE_BYTES {
            return challenge;
        }
        let (mut rest, mut is_bearer, mut was_bearer) = (header, false, false);
        while let Some((word, after)) = take_token(rest) {
            let Some(value) = after.trim_start().strip_prefix('=') else {
                // A word without a value is the name of a scheme.
                if was_bearer {
                    break;
                }
                is_bearer = word.eq_ignore_ascii_case("bearer");
                was_bearer = is_bearer;
                rest = after;
                continue;
            };
            let (value, after) = take_value(value.trim_start());
            rest = after;
            if is_bearer {
                challenge.set(&word.to_ascii_lowercase(), value);
            }
        }
        challenge
    }

    fn set(&mut self, name: &str, value: String) {
        match name {
            "resource_metadata" => self.resource_metadata = Some(value),
            "scope" => self.scopes = read_scopes(&value),
            "error" => self.error = Some(value),
            _ => {}
        }
    }
}

/// Reads a list of scopes. What is not a scope is left out.
pub(super) fn read_scopes(text: &str) -> Vec<String> {
    let mut scopes = Vec::new();
    for scope in text.split(' ').filter(|scope| is_scope(scope)).take(MAX_SCOPES) {
        if !scopes.iter().any(|known| known == scope) {
            scopes.push(scope.to_owned());
        }
    }
    scopes
}

fn is_scope(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    !text.is_empty() && text.len() <= 256 && text.bytes().all(is_allowed)
}

/// Takes the next word, after separators.
fn take_token(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches(|c: char| c == ',' || c == ';' || c.is_whitespace());
    let is_end = |c: char| c.is_whitespace() || matches!(c, ',' | ';' | '=' | '"');
    let length = text.find(is_end).unwrap_or(text.len());
    match length {
        // Something that is no word, such as a lone quote: nothing after it can be trusted.
        0 => None,
        _ => Some(text.split_at(length)),
    }
}

/// Takes a value, quoted or not.
fn take_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let is_end = |c: char| c.is_whitespace() || matches!(c, ',' | ';');
        let length = text.find(is_end).unwrap_or(text.len());
        return (text[..length].to_owned(), &text[length..]);
    };
    let (mut value, mut is_escaped) = (String::new(), false);
    for (index, c) in quoted.char_indices() {
        match c {
            _ if is_escaped => {
                value.push(c);
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            '"' => return (value, &quoted[index + 1..]),
            _ => value.push(c),
        }
    }
    // The quote is not closed.
    (String::new(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_by_the_grammar() {
        let read = BearerChallenge::parse;
        let challenge = read(
            r#"Basic realm="x, scope=basic", bearer realm="a \"quote\"" , error_description="needs scope=\"root\" error=x", scope="b a b", ERROR=insufficient_scope, resource_metadata="https://a/b,c", Digest scope="digest""#,
        );
        assert_eq!(challenge.scopes, ["b", "a"]);
        assert_eq!(challenge.error.as_deref(), Some("insufficient_scope"));
        assert_eq!(challenge.resource_metadata.as_deref(), Some("https://a/b,c"));
        assert_eq!(read("Bearer"), BearerChallenge::default());
        assert_eq!(read("Basic scope=x"), BearerChallenge::default());
        assert_eq!(read("Bearer scope=a"), read("Bearer  scope = \"a\" "));
        assert_eq!(read("Bearer scope=\"a"), BearerChallenge::default());
        assert_eq!(read(&format!("Bearer scope={}", "a".repeat(9000))), BearerChallenge::default());
    }

    #[test]
    fn rubbish_is_read_without_a_panic() {
        for text in
            ["", "=", "\"", "Bearer =", "Bearer \"\"", "Bearer a=\"\\", "ü=ä, Bearer ö=\"é\""]
        {
            BearerChallenge::parse(text);
        }
        assert_eq!(read_scopes("a  b\u{7} ü \"c\" d"), ["a", "d"]);
        let many: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        assert_eq!(read_scopes(&many.join(" ")).len(), MAX_SCOPES);
    }
}
