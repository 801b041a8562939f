//! Copies a response back to the client.

use std::io;

use tokio::io::{AsyncBufRead, AsyncWrite, AsyncWriteExt};

use super::body::copy_body;
use super::head::{BodyFraming, MessageHead, framing_field, write_head};

/// Larger than for requests, because servers send long cookies and policies.
const MAX_RESPONSE_HEAD_BYTES: u64 = 64 * 1024;

/// Copies interim responses and the final one. `response_started` says whether the client has
/// received any of the latter.
pub async fn copy_response(
    reader: &mut (impl AsyncBufRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    method: &[u8],
    response_started: &mut bool,
) -> io::Result<()> {
    let invalid_data = |message: String| io::Error::new(io::ErrorKind::InvalidData, message);
    loop {
        let head = MessageHead::read(reader, MAX_RESPONSE_HEAD_BYTES)
            .await
            .map_err(|error| invalid_data(error.to_string()))?;
        let status =
            parse_status(&head.start_line).ok_or_else(|| invalid_data("no status".to_owned()))?;
        if status == 101 {
            // `Upgrade` was not forwarded, so the client did not ask for this, and what follows
            // would not be HTTP.
            return Err(invalid_data("an upgrade".to_owned()));
        }
        let declared = head.body_framing().map_err(|error| invalid_data(error.to_string()))?;
        if status < 200 {
            writer.write_all(&write_response_head(&head, &[])).await?;
            continue;
        }
        *response_started = true;
        let own_fields: Vec<_> = declared
            .and_then(framing_field)
            .into_iter()
            .chain([(&b"Connection"[..], b"close".to_vec())])
            .collect();
        writer.write_all(&write_response_head(&head, &own_fields)).await?;
        let has_no_body = method == b"HEAD" || status == 204 || status == 304;
        let framing = if has_no_body {
            BodyFraming::Empty
        } else {
            declared.unwrap_or(BodyFraming::UntilClosed)
        };
        return copy_body(reader, writer, framing).await;
    }
}

/// Parses `HTTP/1.1 200 OK`; the reason phrase may be missing.
fn parse_status(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "))?;
    let digits = rest.get(..3).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let is_terminated = rest.get(3).is_none_or(|byte| *byte == b' ');
    let status: u16 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (is_terminated && status >= 100).then_some(status)
}

/// Returns the head to forward, with our own fields added.
fn write_response_head(head: &MessageHead, own_fields: &[(&[u8], Vec<u8>)]) -> Vec<u8> {
    // Only the proxy itself may state that it denied something.
    let upstream_fields =
        head.end_to_end_fields().filter(|field| !field.has_name("x-ringfence-denied"));
    let upstream_fields = upstream_fields.map(|field| (&*field.name, &*field.value));
    write_head(
        &head.start_line,
        upstream_fields.chain(own_fields.iter().map(|(name, value)| (*name, &**value))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn copy(text: &str, method: &str) -> (String, io::Result<()>, bool) {
        let (mut from, mut to, mut started) = (text.as_bytes(), Vec::new(), false);
        let result = copy_response(&mut from, &mut to, method.as_bytes(), &mut started).await;
        (String::from_utf8(to).unwrap(), result, started)
    }

    #[tokio::test]
    async fn an_answer_ends_where_it_says_and_closes() {
        for (text, method, out) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive, X\r\nX: y\r\nKeep-Alive: 5\r\n\r\nhimore",
                "GET",
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi",
            ),
            (
                "HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n2;x\r\nhi\r\n0\r\nT: u\r\n\r\nmore",
                "GET",
                "HTTP/1.1 200\r\nA: b\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            ),
            (
                "HTTP/1.0 200 OK\r\nX-Ringfence-Denied: forged\r\n\r\nto the end",
                "GET",
                "HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nto the end",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
                "HEAD",
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n",
            ),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\nmore",
                "GET",
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\nConnection: close\r\n\r\n",
            ),
        ] {
            let (copied, result, started) = copy(text, method).await;
            assert_eq!(copied, out);
            assert!(result.is_ok() && started);
        }
    }

    #[tokio::test]
    async fn a_wrong_answer_is_not_begun() {
        for text in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/2 200\r\n\r\n",
            "HTTP/1.1 20\r\n\r\n",
            "HTTP/1.1 2000\r\n\r\n",
            "HTTP/1.1 099 x\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
            "SSH-2.0-OpenSSH_9\r\n\r\n",
        ] {
            let (copied, result, started) = copy(text, "GET").await;
            assert!(copied.is_empty() && result.is_err() && !started, "{text:?}");
        }
        let (_, result, started) =
            copy("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi", "GET").await;
        assert!(result.is_err() && started);
    }
}
