//! Percent-encoding as common libraries write it. They differ in which punctuation they leave
//! alone, in how they write a space, and in the case of the hex digits.

/// Punctuation that one kind of encoder leaves alone, and whether it writes a space as `+`.
const ENCODERS: [(&[u8], bool); 9] = [
    // RFC 3986: curl, Python's `quote` with nothing safe, most others.
    (b"-_.~", false),
    // Python's `quote`.
    (b"-_.~/", false),
    // JavaScript's `encodeURIComponent` and `encodeURI`.
    (b"-_.!~*'()", false),
    (b"-_.!~*'();/?:@&=+$,#", false),
    // Forms: browsers and Java; Go and Python's `urlencode`; PHP.
    (b"*-._", true),
    (b"-_.~", true),
    (b"-_.", true),
    // The user part of a URL: Go; browsers and Node, which leave `%` alone too.
    (b"-_.~$&+,;=", false),
    (b"-_.~!$%&'()*+,", false),
];

pub(super) fn url_encodings(value: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let kinds = ENCODERS.iter().flat_map(|(unescaped, space_as_plus)| {
        [(unescaped, *space_as_plus, true), (unescaped, *space_as_plus, false)]
    });
    kinds.map(|(unescaped, space_as_plus, upper_case_hex)| {
        percent_encode(value, unescaped, space_as_plus, upper_case_hex)
    })
}

fn percent_encode(
    value: &[u8],
    unescaped: &[u8],
    space_as_plus: bool,
    upper_case_hex: bool,
) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(value.len());
    for byte in value {
        match byte {
            b' ' if space_as_plus => encoded.push(b'+'),
            byte if byte.is_ascii_alphanumeric() || unescaped.contains(byte) => encoded.push(*byte),
            byte if upper_case_hex => encoded.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            byte => encoded.extend_from_slice(format!("%{byte:02x}").as_bytes()),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_encoders_are_among_them() {
        let value = "p\u{e4}ss w/o:r&d!~(x)";
        let all: Vec<String> =
            url_encodings(value.as_bytes()).map(|form| String::from_utf8(form).unwrap()).collect();
        for (form, by) in [
            ("p%C3%A4ss%20w%2Fo%3Ar%26d%21~%28x%29", "curl"),
            ("p%c3%a4ss%20w%2fo%3ar%26d%21~%28x%29", "lower-case digits"),
            ("p%C3%A4ss%20w/o%3Ar%26d%21~%28x%29", "Python's quote"),
            ("p%C3%A4ss+w%2Fo%3Ar%26d%21~%28x%29", "Python's urlencode, Go's QueryEscape"),
            ("p%C3%A4ss%20w%2Fo%3Ar%26d!~(x)", "encodeURIComponent"),
            ("p%C3%A4ss%20w/o:r&d!~(x)", "encodeURI"),
            ("p%C3%A4ss+w%2Fo%3Ar%26d%21%7E%28x%29", "URLSearchParams, Java, PHP"),
        ] {
            assert!(all.iter().any(|one| one == form), "{by}: {form}");
        }
    }
}
