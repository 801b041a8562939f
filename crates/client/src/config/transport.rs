//! Validation of transports.

use std::collections::{BTreeMap, BTreeSet};

use http::{HeaderName, HeaderValue};
use url::Url;

use super::entry::{ConfigEntry, collect_valid, read_text_map};
use super::problem::ProblemList;
use super::source::ConfigSource;
use super::{RemoteTransport, StdioTransport, TransportConfig};

/// Headers that the connection sets itself. A configured value would break the protocol's framing
/// or present one session as another.
const PROTOCOL_HEADERS: &[&str] = &[
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "transfer-encoding",
];

#[derive(Clone, Copy)]
enum TransportType {
    Http,
    Sse,
    Stdio,
}

const TRANSPORT_TYPES: &[(&str, TransportType)] =
    &[("http", TransportType::Http), ("sse", TransportType::Sse), ("stdio", TransportType::Stdio)];

/// Reads the transport of a server.
pub(super) fn read_transport(
    entry: &ConfigEntry<'_>,
    sources: &[ConfigSource],
    problems: &mut ProblemList,
) -> Option<TransportConfig> {
    // Without a valid type, no other key can be judged.
    entry.read_members(problems)?;
    let transport_type = entry
        .require("type", "Set it to \"http\", \"sse\" or \"stdio\".", problems)?
        .read_choice(TRANSPORT_TYPES, problems)?;
    match transport_type {
        TransportType::Http => read_remote(entry, problems).map(TransportConfig::Http),
        TransportType::Sse => read_remote(entry, problems).map(TransportConfig::Sse),
        TransportType::Stdio => read_stdio(entry, sources, problems).map(TransportConfig::Stdio),
    }
}

fn read_remote(entry: &ConfigEntry<'_>, problems: &mut ProblemList) -> Option<RemoteTransport> {
    entry.check_keys(&["type", "url", "headers", "authProviderId"], problems);
    let url = entry
        .require("url", "Set it to the address of the server.", problems)
        .and_then(|url| read_url(&url, problems));
    let headers = match entry.get("headers") {
        Some(headers) => read_headers(&headers, problems),
        None => Some(BTreeMap::new()),
    };
    let auth_provider_id = match entry.get("authProviderId") {
        Some(id) => id.read_name(problems).map(|id| Some(id.to_owned())),
        None => Some(None),
    };
    Some(RemoteTransport { url: url?, headers: headers?, auth_provider_id: auth_provider_id? })
}

/// Reads a URL. Problems do not quote it: it may contain a password or a token.
fn read_url(entry: &ConfigEntry<'_>, problems: &mut ProblemList) -> Option<Url> {
    const EXAMPLE: &str = "Write it in full, such as https://example.com/mcp.";
    let text = entry.read_text(problems)?;
    // The URL parser removes white space silently; the result would differ from what was reviewed.
    let has_space = text.chars().any(|c| c.is_whitespace() || c.is_control());
    let (reason, hint) = match Url::parse(text) {
        _ if has_space => ("this URL contains white space or control characters", "Remove them."),
        Err(_) => ("this is not a valid URL", EXAMPLE),
        Ok(url) if !matches!(url.scheme(), "http" | "https") => {
            ("this URL must start with http:// or https://", EXAMPLE)
        }
        Ok(url) if !url.username().is_empty() || url.password().is_some() => (
            "this URL must not contain a user name or password",
            "Send credentials in `headers` or by `authProviderId`.",
        ),
        Ok(url) if url.fragment().is_some() => {
            ("this URL must not contain a fragment", "Remove `#` and what follows it.")
        }
        Ok(url) => return Some(url),
    };
    problems.add(entry.new_problem(reason, hint));
    None
}

fn read_headers(
    entry: &ConfigEntry<'_>,
    problems: &mut ProblemList,
) -> Option<BTreeMap<String, String>> {
    let mut seen = BTreeSet::new();
    read_text_map(entry, problems, |name, member, problems| {
        let value = member.read_text(problems);
        let Ok(valid_name) = HeaderName::from_bytes(name.as_bytes()) else {
            let hint = "Use letters, digits and `-`.";
            problems.add(member.new_problem("this is not a valid header name", hint));
            return None;
        };
        let lower = valid_name.as_str();
        if PROTOCOL_HEADERS.contains(&lower) {
            let hint = "Remove it: the client sets this header itself.";
            problems.add(member.new_problem("this header belongs to the protocol", hint));
            return None;
        }
        if !seen.insert(lower.to_owned()) {
            let reason = "another header has the same name in a different case";
            problems.add(member.new_problem(reason, "Keep one of them."));
            return None;
        }
        let value = value?;
        if HeaderValue::from_str(value).is_err() {
            let hint = "Remove line breaks and other control characters.";
            problems.add(member.new_problem("this is not a valid header value", hint));
            return None;
        }
        Some(value)
    })
}

fn read_stdio(
    entry: &ConfigEntry<'_>,
    sources: &[ConfigSource],
    problems: &mut ProblemList,
) -> Option<StdioTransport> {
    entry.check_keys(&["type", "command", "args", "cwd", "env"], problems);
    let command = entry
        .require("command", "Set it to the program to start.", problems)
        .and_then(|command| read_os_name(&command, problems));
    let args = match entry.get("args") {
        Some(args) => args.read_items(problems).and_then(|items| {
            collect_valid(items.iter().map(|item| item.read_os_text(problems).map(str::to_owned)))
        }),
        None => Some(Vec::new()),
    };
    let cwd = match entry.get("cwd") {
        Some(cwd) => read_os_name(&cwd, problems).map(|path| {
            let source = sources.get(cwd.node.position.source);
            Some(source.map_or_else(|| path.into(), |source| source.resolve_path(path)))
        }),
        None => Some(None),
    };
    let env = match entry.get("env") {
        Some(env) => read_text_map(&env, problems, read_variable),
        None => Some(BTreeMap::new()),
    };
    Some(StdioTransport { command: command?.to_owned(), args: args?, cwd: cwd?, env: env? })
}

fn read_os_name<'a>(entry: &ConfigEntry<'a>, problems: &mut ProblemList) -> Option<&'a str> {
    entry.read_name(problems)?;
    entry.read_os_text(problems)
}

fn read_variable<'a>(
    name: &str,
    member: &ConfigEntry<'a>,
    problems: &mut ProblemList,
) -> Option<&'a str> {
    let value = member.read_os_text(problems);
    if name.is_empty() || name.contains(['=', '\0']) {
        let hint = "Use a name that is not empty and contains neither `=` nor NUL.";
        problems.add(member.new_problem("this is not a valid variable name", hint));
        return None;
    }
    value
}
