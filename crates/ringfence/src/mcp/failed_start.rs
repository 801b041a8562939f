//! Answers the first request of a client whose server could not start. Otherwise the client sees a
//! closed pipe, and the reason stays in a log that most clients do not show.
//!
//! It serves standard input and output only, answers one request, and never lists a tool.

use std::io::IsTerminal;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::{envelope, stdio_streams};
use crate::base::Error;

/// How long to wait for the first request. Clients send it immediately; a start script with an idle
/// pipe must not hang.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit on the bytes read. The first request of a client is far smaller.
const MAX_BYTES: u64 = 1024 * 1024;

/// Waits briefly for a request on standard input and answers it with the reason of the failed
/// start. Does not wait at a terminal: a person has read the reason on standard error.
pub fn answer_client(error: &Error) {
    if std::io::stdin().is_terminal() {
        return;
    }
    // The reason is already on standard error; without a runtime the pipe closes as it would for
    // any other program.
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    runtime.block_on(async {
        let _ = tokio::time::timeout(REQUEST_TIMEOUT, answer_first_request(error)).await;
    });
    // A read of standard input may never return; it must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_millis(100));
}

async fn answer_first_request(error: &Error) -> std::io::Result<()> {
    let mut input = BufReader::new(stdio_streams::open_stdin().take(MAX_BYTES));
    let Some(id) = read_first_request(&mut input).await? else { return Ok(()) };
    let mut line =
        envelope::refusal_message(Some(id), &error_for_client(error)).to_string().into_bytes();
    line.push(b'\n');
    let mut output = stdio_streams::open_stdout();
    output.write_all(&line).await?;
    output.flush().await
}

/// Returns the id of the first request. Notifications and malformed lines have no id to answer
/// under.
async fn read_first_request(
    input: &mut (impl AsyncBufRead + Unpin),
) -> std::io::Result<Option<Value>> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
        let Ok(message) = serde_json::from_slice::<Map<String, Value>>(&line) else { continue };
        if message.contains_key("method")
            && let Some(id) = envelope::request_id(&message)
        {
            return Ok(Some(id));
        }
    }
}

/// Returns the error as a client may see it. For a mistake in the config file this is its position
/// and key: the line with its value may contain anything, and goes to standard error only.
fn error_for_client(error: &Error) -> Error {
    let fact = |name: &str| error.get_fact(name).and_then(Value::as_str);
    let mut client_error = match (fact("file"), fact("summary"), fact("remedy")) {
        (Some(file), Some(summary), Some(remedy)) => {
            let position =
                |name: &str| error.get_fact(name).and_then(Value::as_u64).unwrap_or_default();
            let key = fact("key").map(|key| format!(", key `{key}`")).unwrap_or_default();
            let (line, column) = (position("line"), position("column"));
            let mut client_error = Error::new(
                error.kind(),
                format!("ringfence cannot start: {file}, line {line}, column {column}{key}: {summary}"),
            )
            .with_hint(format!("{remedy} `ringfence config check {file}` shows the line. Then start the server again."))
            .with_fact("file", file)
            .with_fact("line", line)
            .with_fact("column", column);
            if let Some(key) = fact("key") {
                client_error = client_error.with_fact("key", key);
            }
            client_error
        }
        _ => {
            let hint = error.hint_text().unwrap_or_else(|| error.kind().default_hint());
            Error::new(error.kind(), format!("ringfence cannot start: {}", error.message()))
                .with_hint(hint)
        }
    };
    if let Some(reason) = error.reason_name() {
        client_error = client_error.with_reason(reason);
    }
    client_error.without_secrets()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn the_first_request_is_found_behind_notifications_and_noise() {
        let cases: [(&[u8], Option<Value>); 6] = [
            (b"", None),
            (b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n", None),
            (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n", None),
            (
                b"\nnoise\n[1]\n{\"id\":null,\"method\":\"x\"}\n{\"id\":\"a\",\"method\":\"x\"}\n",
                Some(json!("a")),
            ),
            (b"{\"id\":7,\"method\":\"x\"}", Some(json!(7))),
            (b"{\"id\":7,\"meth", None),
        ];
        for (input, id) in cases {
            assert_eq!(
                read_first_request(&mut &*input).await.unwrap(),
                id,
                "{}",
                String::from_utf8_lossy(input)
            );
        }
    }
}
