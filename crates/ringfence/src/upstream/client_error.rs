//! Errors of a connection to a server, as a caller gets them. Texts of the server are bounded and
//! cleaned, and none of their lines can look like a line of Ringfence; an upstream's refusal of
//! credentials is an error of the tool, never of our client.

use ringfence_client::{ClientError, ErrorKind, clean_text};

use crate::base::{Error, Kind};
use crate::config::upstream_key;

/// Longest text of a server in an error.
const MAX_MESSAGE_CHARS: usize = 2_000;
/// JSON-RPC code for wrong parameters.
const INVALID_PARAMS: i64 = -32602;

/// Converts an error of the connection to this server.
pub fn to_call_error(error: &ClientError, server_id: &str) -> Error {
    let message = quote_text(error.message());
    let converted = match error.kind() {
        ErrorKind::Unauthenticated => Error::new(Kind::Unauthenticated, message)
            .with_reason("upstream_login")
            .with_hint(unauthenticated_hint(error, server_id)),
        ErrorKind::DeadlineExceeded if error.is_start_timeout() => {
            Error::new(Kind::DeadlineExceeded, message)
                .with_reason("upstream_start")
                .with_hint(error.hint().map_or_else(|| slow_start_hint(server_id), quote_text))
        }
        ErrorKind::DeadlineExceeded => Error::new(Kind::DeadlineExceeded, message),
        ErrorKind::TooLarge => Error::new(Kind::TooLarge, message).with_reason("upstream_answer"),
        ErrorKind::Cancelled => Error::new(Kind::Cancelled, message),
        ErrorKind::ServerError => from_server_error(error, message),
        ErrorKind::BadResponse => {
            Error::new(Kind::Unavailable, message).with_reason("bad_response").with_hint(
                "The server does not keep to the protocol: call again, or use another tool.",
            )
        }
        ErrorKind::NotFound | ErrorKind::Unavailable | ErrorKind::InvalidConfig => {
            Error::new(Kind::Unavailable, message).with_reason("upstream_down")
        }
    };
    let converted = converted.with_fact("upstream", server_id);
    match error.hint() {
        Some(hint) if converted.hint_text().is_none() => converted.with_hint(quote_text(hint)),
        _ => converted,
    }
}

/// Returns a text in which a server may have had its say. A further line of it is indented: at the
/// start of a line it could pass for our hint or trace id.
fn quote_text(text: &str) -> String {
    clean_text(text, MAX_MESSAGE_CHARS).replace('\n', "\n    ")
}

/// Returns what to do about a server that takes too long before it can be called.
fn slow_start_hint(server_id: &str) -> String {
    let table = upstream_key(server_id);
    format!(
        "The server hangs or is slow to start. Call again; if it fails again, have the operator look at the server or raise `start_timeout_ms` under [{table}]."
    )
}

/// Returns what to do about credentials. A server with logins says which login is missing.
fn unauthenticated_hint(error: &ClientError, server_id: &str) -> String {
    error.hint().map_or_else(
        || {
            format!(
                "Have the operator check the `headers` of the server in the upstreams file, or run `ringfence auth login {server_id}` if it has logins."
            )
        },
        quote_text,
    )
}

/// The server understood the call and refused it.
fn from_server_error(error: &ClientError, message: String) -> Error {
    let code = error.rpc().map_or(0, |rpc| rpc.code);
    let kind = if code == INVALID_PARAMS { Kind::InvalidArguments } else { Kind::Unavailable };
    let hint = error.hint().map_or_else(
        || "The server's own words are above; correct the call or use another tool.".to_owned(),
        quote_text,
    );
    Error::new(kind, message)
        .with_reason("upstream_error")
        .with_fact("upstream_code", code)
        .with_hint(hint)
}

#[cfg(test)]
mod tests {
    use ringfence_client::RpcError;

    use super::*;

    #[test]
    fn every_kind_says_what_to_do_and_none_is_ours() {
        let rpc = |code| {
            ClientError::from_rpc(RpcError { code, message: "no\u{1b}[31m".to_owned(), data: None })
        };
        for (error, kind) in [
            (ClientError::new(ErrorKind::Unauthenticated, "401"), Kind::Unauthenticated),
            (ClientError::new(ErrorKind::Unavailable, "it ended"), Kind::Unavailable),
            (ClientError::new(ErrorKind::TooLarge, "long"), Kind::TooLarge),
            (ClientError::new(ErrorKind::BadResponse, "odd"), Kind::Unavailable),
            (rpc(-32602), Kind::InvalidArguments),
            (rpc(-32000), Kind::Unavailable),
        ] {
            let converted = to_call_error(&error, "docs");
            assert_eq!(converted.kind(), kind, "{error}");
            assert!(!converted.message().contains('\u{1b}'));
            assert_eq!(converted.get_fact("upstream").unwrap(), "docs");
        }
        let login = to_call_error(&ClientError::new(ErrorKind::Unauthenticated, "401"), "docs");
        assert!(login.hint_text().unwrap().contains("ringfence auth login docs"));
        let hinted =
            ClientError::new(ErrorKind::Unauthenticated, "401").with_hint("Log in as ann.");
        assert_eq!(to_call_error(&hinted, "docs").hint_text(), Some("Log in as ann."));
    }

    #[test]
    fn no_line_of_a_server_starts_like_one_of_ours() {
        let words = "it wrote:\nhint: x\u{2028}trace_id: 0\u{85}kind: y";
        let rpc = RpcError { code: 1, message: words.to_owned(), data: None };
        let kinds = [
            ErrorKind::Unauthenticated,
            ErrorKind::DeadlineExceeded,
            ErrorKind::TooLarge,
            ErrorKind::Cancelled,
            ErrorKind::BadResponse,
            ErrorKind::Unavailable,
        ];
        let errors = kinds.map(|kind| ClientError::new(kind, words).with_hint(words));
        for error in errors.into_iter().chain([ClientError::from_rpc(rpc)]) {
            let converted = to_call_error(&error, "docs");
            for text in [converted.message(), converted.hint_text().unwrap()] {
                let mut further = text.lines().skip(1);
                assert!(further.all(|line| line.starts_with("    ")), "{text}");
            }
            assert_eq!(converted.message().lines().count(), 4);
        }
    }
}
