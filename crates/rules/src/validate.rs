//! Validates the arguments of the rule functions: hosts, and programs with the files they may refer
//! to.

use std::path::Path;

use policy::{NetworkProtocol, RuleTable};

/// Validates the host of a `network_rule`: a single host without scheme, port or path. Returns it
/// in lower case.
pub fn parse_host(given: &str) -> Result<String, String> {
    let host = given.trim();
    if host.contains(['/', '?', '#']) {
        return Err(format!(
            "host must be a name or an IP address, without scheme or path (got {given:?})"
        ));
    }
    let host = strip_port(host)
        .ok_or_else(|| format!("host is not a valid IPv6 address in brackets (got {given:?})"))?;
    let host = host.trim_end_matches('.').trim().to_ascii_lowercase();
    match host {
        host if host.is_empty() => Err("host must not be empty".to_owned()),
        host if host.contains('*') => {
            Err(format!("host must be one host: wildcards are not allowed (got {given:?})"))
        }
        host if host.contains(char::is_whitespace) => {
            Err(format!("host must not contain spaces (got {given:?})"))
        }
        host => Ok(host),
    }
}

/// Removes the port. Text with more than one colon and no brackets is an IPv6 address without a
/// port.
fn strip_port(host: &str) -> Option<&str> {
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(inner) = host.strip_prefix('[') {
        let (address, rest) = inner.split_once(']')?;
        return (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)).then_some(address);
    }
    match host.split_once(':') {
        Some((name, port)) if !name.is_empty() && is_port(port) => Some(name),
        _ => Some(host),
    }
}

/// Validates the protocol of a `network_rule`.
pub fn parse_protocol(given: &str) -> Result<NetworkProtocol, String> {
    match given {
        "http" => Ok(NetworkProtocol::Http),
        "https" | "https_connect" | "http-connect" => Ok(NetworkProtocol::Https),
        "socks5_tcp" => Ok(NetworkProtocol::Socks5Tcp),
        "socks5_udp" => Ok(NetworkProtocol::Socks5Udp),
        other => {
            Err(format!("protocol must be http, https, socks5_tcp or socks5_udp (got {other:?})"))
        }
    }
}

/// Validates the name of a `host_executable`, which must be a file name and not a path.
pub fn check_program_name(name: &str) -> Result<(), String> {
    match name {
        "" => Err("name must not be empty".to_owned()),
        name if Path::new(name).file_name().is_some_and(|only| only == name) => Ok(()),
        _ => Err(format!("name must be the name of a program, without a directory (got {name:?})")),
    }
}

/// Validates one path of a `host_executable` and returns it without `.` and `..`.
pub fn parse_program_path(name: &str, given: &str) -> Result<String, String> {
    if !Path::new(given).is_absolute() {
        return Err(format!("paths must be absolute (got {given:?})"));
    }
    let path = RuleTable::normalize_path(Path::new(given));
    match path.to_str() {
        Some(text) if path.file_name().is_some_and(|last| last == name) => Ok(text.to_owned()),
        _ => Err(format!("every path must end in {name:?} (got {given:?})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_host_in_lower_case() {
        for (given, expected) in [
            ("Example.COM", "example.com"),
            (" example.com:443 ", "example.com"),
            ("example.com.", "example.com"),
            ("[::1]:8080", "::1"),
            ("[::1]", "::1"),
            ("fe80::1", "fe80::1"),
            ("10.0.0.1:80", "10.0.0.1"),
            ("host:port", "host:port"),
            (":80", ":80"),
        ] {
            assert_eq!(parse_host(given).as_deref(), Ok(expected), "{given}");
        }
        for bad in [
            "",
            " ",
            ".",
            "https://x",
            "x/y",
            "x?y",
            "x#y",
            "*.x",
            "a b",
            "[::1",
            "[::1]x",
            "[::1]:",
            "[]",
        ] {
            assert!(parse_host(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_program_has_a_bare_name_and_paths_that_end_in_it() {
        assert!(check_program_name("git").is_ok() && check_program_name("a b").is_ok());
        for bad in ["", ".", "..", "/", "./git", "git/", "/usr/bin/git", "bin/git"] {
            assert!(check_program_name(bad).is_err(), "{bad}");
        }
        assert_eq!(
            parse_program_path("git", "/usr//lib/../bin/./git").as_deref(),
            Ok("/usr/bin/git")
        );
        for bad in ["git", "~/git", "/usr/bin/hub", "/", "/git/.."] {
            assert!(parse_program_path("git", bad).is_err(), "{bad}");
        }
    }
}
