//! Decides which addresses a page may open. This is an allow-list, because deny-lists of schemes
//! are where such checks fail (`view-source:file:`, `filesystem:`, and whatever comes next).

use crate::base::{Error, Result};
use crate::net::Host;

/// The empty page.
pub const BLANK_PAGE: &str = "about:blank";

/// Returns the address to give to the browser, or why it is refused.
pub fn check_url(url: &str) -> Result<String> {
    // Browsers strip these characters around an address, and some of them inside it.
    let trimmed = url.trim_matches(|c: char| c <= ' ');
    if trimmed.is_empty()
        || trimmed.len() > 32_768
        || trimmed.chars().any(|c| c.is_control() || c == ' ')
    {
        return Err(Error::invalid_arguments("`url` is not an address")
            .with_hint("Give an http or https address, percent-encoded where needed.")
            .with_fact("argument", "url"));
    }
    if trimmed == BLANK_PAGE {
        return Ok(trimmed.to_owned());
    }
    let Some((scheme, rest)) = trimmed.split_once(':') else { return Err(refuse_scheme(None)) };
    let is_web = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let is_valid_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    if !is_web {
        // `localhost:3000` is a name with a port, not a scheme.
        let is_host_like = scheme.contains('.') || scheme.eq_ignore_ascii_case("localhost");
        let port = is_host_like
            && rest.split(['/', '?', '#']).next().is_some_and(|port| port.parse::<u16>().is_ok());
        return Err(refuse_scheme(Some(scheme).filter(|_| is_valid_scheme && !port)));
    }
    // Require exactly two slashes and a host: browsers accept fewer, and then the address is not
    // what it looks like.
    let host =
        rest.strip_prefix("//").map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
    match host {
        Some(host) if is_numeric_host(host) => {
            Err(Error::invalid_arguments("`url` gives its host as a number")
                .with_hint("Write an address in its usual form: four numbers with dots, or [::1].")
                .with_fact("argument", "url"))
        }
        Some(host)
            if !host.is_empty() && !host.contains('\\') && host_and_port(trimmed).is_some() =>
        {
            Ok(trimmed.to_owned())
        }
        _ => Err(Error::invalid_arguments("`url` has no host")
            .with_hint("Write it as http://host[:port]/path.")
            .with_fact("argument", "url")),
    }
}

/// Returns whether the host is a number such as `2130706433` or `0x7f.1`: browsers treat these as
/// an address, other software does not.
fn is_numeric_host(authority: &str) -> bool {
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = match host.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => host,
    };
    let last_label = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let is_numeric = !last_label.is_empty() && last_label.bytes().all(|byte| byte.is_ascii_digit())
        || last_label.strip_prefix("0x").or_else(|| last_label.strip_prefix("0X")).is_some();
    is_numeric && host.parse::<std::net::Ipv4Addr>().is_err()
}

/// Returns host and port of an address, as the proxy names them.
pub fn host_and_port(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?.to_ascii_lowercase();
    let default_port = if scheme.eq_ignore_ascii_case("https") { 443 } else { 80 };
    let split =
        host.rsplit_once(':').filter(|(before, _)| !before.contains(':') || before.ends_with(']'));
    let (host, port) = match split {
        Some((host, "")) => (host, default_port),
        Some((host, port)) => (host, port.parse().ok()?),
        None => (host.as_str(), default_port),
    };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match address.and_then(|address| address.parse::<std::net::Ipv6Addr>().ok()) {
        Some(address) => Some((format!("[{address}]"), port)),
        // Normalised as the proxy does, including internationalised names.
        None => Some((Host::parse(host.as_bytes())?.display_text(), port)),
    }
}

/// Returns whether a host is the session's own loopback.
pub fn is_loopback(host: &str) -> bool {
    let address: Option<std::net::IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    host == "localhost"
        || host.ends_with(".localhost")
        || address.is_some_and(|address| address.is_loopback())
}

/// Returns whether a page may stay at an address that it navigated to on its own.
pub fn may_stay_at(url: &str) -> bool {
    let is_browser_page = ["about:blank", "chrome-error://chromewebdata/", ":", ""].contains(&url);
    is_browser_page || url.starts_with("http://")
        || url.starts_with("https://")
        || url.starts_with("about:blank#")
        // A blob belongs to the page that created it.
        || url.starts_with("blob:http://")
        || url.starts_with("blob:https://")
}

fn refuse_scheme(scheme: Option<&str>) -> Error {
    match scheme {
        Some(scheme) => {
            let scheme: String = scheme.chars().take(40).collect();
            Error::permission_denied("scheme", format!("the browser does not open `{scheme}:` addresses")).with_hint(
                "Only http, https and about:blank can be opened. To view a file, serve it with your own web server.",
            )
        }
        None => Error::invalid_arguments("`url` has no scheme")
            .with_hint("Put http:// or https:// before it.")
            .with_fact("argument", "url"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Kind;

    #[test]
    fn a_host_is_found_as_the_proxy_names_it() {
        for (url, host, port) in [
            ("http://Localhost:3000/x", "localhost", 3000),
            ("https://example.com", "example.com", 443),
            ("http://user:pw@example.com./", "example.com", 80),
            ("http://[::FFFF:a9fe:a9fe]:8080/", "[::ffff:169.254.169.254]", 8080),
            ("http://[::1]", "[::1]", 80),
            // The second letter is Cyrillic.
            ("https://p\u{430}ypal.com/", "xn--pypal-4ve.com", 443),
            ("https://B\u{fc}cher.Example", "xn--bcher-kva.example", 443),
            ("http://127.0.0.1:/", "127.0.0.1", 80),
        ] {
            assert_eq!(host_and_port(url), Some((host.to_owned(), port)), "{url}");
        }
        assert_eq!(host_and_port("about:blank"), None);
        for host in ["localhost", "a.localhost", "127.9.9.9", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["localhost.example.com", "128.0.0.1", "[::2]"] {
            assert!(!is_loopback(host), "{host}");
        }
        for url in [
            "http://2130706433/",
            "http://0x7f.1/",
            "http://127.1/",
            "http://0177.0.0.1:80/",
            "http://a@1.2.3.4.5",
        ] {
            assert_eq!(check_url(url).expect_err(url).kind(), Kind::InvalidArguments, "{url}");
        }
    }

    #[test]
    fn only_the_web_is_opened() {
        for url in [
            "http://localhost:3000/",
            "https://example.com",
            "HTTP://[::1]:8080/x?y#z",
            "about:blank",
            " http://user@host/a b".trim(),
        ] {
            let allowed = check_url(url);
            assert_eq!(allowed.is_ok(), !url.contains("a b"), "{url}");
        }
        for url in [
            "file:///etc/passwd",
            "FILE:///etc/passwd",
            "view-source:http://x/",
            "view-source:file:///etc/passwd",
            "chrome://version",
            "javascript:alert(1)",
            "data:text/html,x",
            "blob:http://x/1",
            "filesystem:http://x/temporary/a",
            "about:srcdoc",
            "about:version",
            "devtools://devtools/bundled/inspector.html",
            "ftp://host/",
            "ws://host/",
            "\u{1}file:///etc/passwd",
        ] {
            let error = check_url(url).expect_err(url);
            assert_eq!(
                (error.kind(), error.reason_name()),
                (Kind::PermissionDenied, Some("scheme")),
                "{url}"
            );
            assert!(
                !may_stay_at(url.trim_start_matches('\u{1}')) || url.starts_with("blob:"),
                "{url}"
            );
        }
        for url in [
            "",
            "localhost:3000",
            "example.com/x",
            "http:/x",
            "http:x",
            "http://",
            "http:\\\\x",
            "http://ex%61mple.com/",
            "http://a..b/",
            "http://a\\b/",
            "ht\ntp://x",
            "ja\tvascript:1",
        ] {
            assert_eq!(check_url(url).expect_err(url).kind(), Kind::InvalidArguments, "{url}");
        }
    }
}
