//! JSON-RPC messages, read without looking inside their values.

use std::borrow::Cow;
use std::sync::Arc;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::error::{ClientError, ErrorKind, Result, RpcError};

/// Most messages in a batch: each takes many times the two bytes of the shortest one.
const MAX_BATCH: usize = 1_000;
/// Longest id of a server's request. It is copied into the answer.
const MAX_ID_BYTES: usize = 256;
/// Longest text of a server's own error that is kept.
const MAX_ERROR_TEXT: usize = 4 << 10;

/// JSON text that came from a server, exactly as it came. Shares the memory of its message.
#[derive(Clone)]
pub struct RawJson {
    message: Arc<String>,
    start: usize,
    end: usize,
}

impl RawJson {
    /// Returns the text.
    pub fn get(&self) -> &str {
        self.message.get(self.start..self.end).unwrap_or_default()
    }

    /// Parses the text.
    pub fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T> {
        serde_json::from_str(self.get()).map_err(|error| {
            ClientError::new(
                ErrorKind::BadResponse,
                format!("the server's answer has an unexpected form: {error}"),
            )
        })
    }

    /// Takes a part of a message. `part` must borrow from `message`.
    fn from_part(message: &Arc<String>, part: &RawValue) -> RawJson {
        let start = (part.get().as_ptr() as usize).saturating_sub(message.as_ptr() as usize);
        RawJson { message: Arc::clone(message), start, end: start + part.get().len() }
    }
}

impl RawJson {
    /// Returns the same text, copied if its message is much longer.
    pub(crate) fn into_compact(self) -> RawJson {
        match self.message.len() > 2 * (self.end - self.start) + 256 {
            true => RawJson::from(self.get().to_owned()),
            false => self,
        }
    }
}

impl From<String> for RawJson {
    fn from(text: String) -> RawJson {
        RawJson { start: 0, end: text.len(), message: Arc::new(text) }
    }
}

impl std::fmt::Debug for RawJson {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // What a server sends may hold secrets, and may be large.
        write!(formatter, "RawJson({} bytes)", self.end - self.start)
    }
}

/// One message of a server.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// Answer to our request; the id is `None` if it is not one that we gave.
    Answer {
        id: Option<u64>,
        result: Result<RawJson>,
    },
    /// Request that wants an answer under this id.
    Request {
        id: RawJson,
        method: String,
        params: Option<RawJson>,
    },
    Notification {
        method: String,
        params: Option<RawJson>,
    },
    /// JSON that is not a message.
    Unknown,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// Reads the messages of one text: one, or the several of a batch. `None` if it is not JSON.
pub(crate) fn read_messages(text: &Arc<String>) -> Option<Vec<Incoming>> {
    match text.trim_start().starts_with('[') {
        true => {
            let Batch(parts) = serde_json::from_str(text).ok()?;
            Some(parts.into_iter().map(|part| read_envelope(text, part)).collect())
        }
        false => Some(vec![read_envelope(text, serde_json::from_str(text).ok()?)]),
    }
}

struct Batch<'a>(Vec<Envelope<'a>>);

impl<'de> Deserialize<'de> for Batch<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Batch<'de>, D::Error> {
        struct BatchVisitor;

        impl<'de> Visitor<'de> for BatchVisitor {
            type Value = Batch<'de>;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a batch of messages")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Batch<'de>, A::Error> {
                let mut batch = Vec::new();
                while let Some(part) = parts.next_element()? {
                    if batch.len() >= MAX_BATCH {
                        return Err(A::Error::custom("the batch has too many messages"));
                    }
                    batch.push(part);
                }
                Ok(Batch(batch))
            }
        }

        deserializer.deserialize_seq(BatchVisitor)
    }
}

fn read_envelope(text: &Arc<String>, envelope: Envelope<'_>) -> Incoming {
    let keep = |part: &RawValue| RawJson::from_part(text, part);
    // `"id": null` is read as absent, which is what an error about an unreadable request has.
    match envelope {
        Envelope { id: Some(id), .. } if id.get().len() > MAX_ID_BYTES => Incoming::Unknown,
        Envelope { method: Some(method), id: Some(id), params, .. } => Incoming::Request {
            id: keep(id),
            method: method.into_owned(),
            params: params.map(keep),
        },
        Envelope { method: Some(method), id: None, params, .. } => {
            Incoming::Notification { method: method.into_owned(), params: params.map(keep) }
        }
        Envelope { id, result, error, .. } if result.is_some() || error.is_some() => {
            let result = match (result, error) {
                (_, Some(error)) => Err(ClientError::from_rpc(read_error(error))),
                (Some(result), None) => Ok(keep(result)),
                (None, None) => return Incoming::Unknown,
            };
            Incoming::Answer { id: id.and_then(|id| read_id(id.get())), result }
        }
        _ => Incoming::Unknown,
    }
}

/// Returns the number of one of our ids. Some servers turn numbers into text.
fn read_id(text: &str) -> Option<u64> {
    text.trim_matches('"').parse().ok()
}

/// Reads an error object, or whatever is in its place: some servers send plain text.
fn read_error(error: &RawValue) -> RpcError {
    #[derive(Deserialize)]
    struct ErrorObject<'a> {
        #[serde(default)]
        code: i64,
        #[serde(borrow, default)]
        message: Cow<'a, str>,
        #[serde(borrow, default)]
        data: Option<&'a RawValue>,
    }
    let shorten = |text: &str| text.chars().take(MAX_ERROR_TEXT).collect::<String>();
    // A list would be read as the fields in their order.
    let object = Some(error.get()).filter(|text| text.starts_with('{'));
    match object.and_then(|text| serde_json::from_str::<ErrorObject<'_>>(text).ok()) {
        Some(object) => RpcError {
            code: object.code,
            message: shorten(&object.message),
            data: object
                .data
                .map(|data| data.get().to_owned())
                .filter(|data| data.len() <= MAX_ERROR_TEXT),
        },
        None => RpcError { code: 0, message: shorten(error.get().trim_matches('"')), data: None },
    }
}

/// Our request or notification.
#[derive(Serialize)]
pub(crate) struct Outgoing<'a, P: Serialize> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<P>,
}

/// Writes a request or, without an id, a notification.
pub(crate) fn write_message(
    id: Option<u64>,
    method: &str,
    params: Option<impl Serialize>,
) -> Result<Vec<u8>> {
    serde_json::to_vec(&Outgoing { jsonrpc: "2.0", id, method, params }).map_err(|error| {
        ClientError::new(ErrorKind::BadResponse, format!("the message cannot be written: {error}"))
    })
}

/// Answer to a request of a server.
#[derive(Debug)]
pub(crate) enum Reply {
    Result(serde_json::Value),
    Error { code: i64, message: &'static str },
}

/// JSON-RPC code for a method that does not exist.
pub(crate) const METHOD_NOT_FOUND: i64 = -32601;

/// Writes an answer.
pub(crate) fn write_reply(id: &RawJson, reply: &Reply) -> Vec<u8> {
    let body = match reply {
        Reply::Result(result) => format!("\"result\":{result}"),
        Reply::Error { code, message } => {
            format!("\"error\":{}", serde_json::json!({"code": code, "message": message}))
        }
    };
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{},{body}}}", id.get()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Incoming> {
        read_messages(&Arc::new(text.to_owned())).unwrap()
    }

    #[test]
    fn a_result_is_kept_as_it_came() {
        let text = r#"{"jsonrpc":"2.0","id":7,"result":{"b":1,  "a":[1.0, 1e400],"unknown":{}}}"#;
        let [Incoming::Answer { id: Some(7), result: Ok(result) }] = &read(text)[..] else {
            panic!()
        };
        assert_eq!(result.get(), r#"{"b":1,  "a":[1.0, 1e400],"unknown":{}}"#);
    }

    #[test]
    fn ids_may_come_back_as_text() {
        assert!(matches!(
            &read(r#"{"id":"12","result":{}}"#)[..],
            [Incoming::Answer { id: Some(12), result: Ok(_) }]
        ));
        assert!(matches!(
            &read(r#"{"id":"x12","result":{}}"#)[..],
            [Incoming::Answer { id: None, .. }]
        ));
    }

    #[test]
    fn an_error_may_be_anything() {
        for (text, code, message) in [
            (r#"{"id":1,"error":{"code":-32602,"message":"no"}}"#, -32602, "no"),
            (r#"{"id":1,"error":"it broke"}"#, 0, "it broke"),
            (r#"{"id":1,"error":{"code":5}}"#, 5, ""),
            (r#"{"id":1,"error":[1]}"#, 0, "[1]"),
        ] {
            let [Incoming::Answer { result: Err(error), .. }] = &read(text)[..] else {
                panic!("{text}")
            };
            let rpc = error.rpc().unwrap();
            assert_eq!((rpc.code, rpc.message.as_str()), (code, message), "{text}");
        }
    }

    #[test]
    fn a_batch_is_several_messages() {
        let messages = read(r#"[{"method":"a"},{"id":1,"method":"ping"},{"id":2,"result":1},{}]"#);
        assert!(matches!(
            &messages[..],
            [
                Incoming::Notification { .. },
                Incoming::Request { .. },
                Incoming::Answer { id: Some(2), .. },
                Incoming::Unknown
            ]
        ));
    }

    #[test]
    fn a_batch_and_an_id_are_bounded() {
        let batch = Arc::new(format!("[{}{{}}]", "{},".repeat(MAX_BATCH)));
        assert!(read_messages(&batch).is_none());
        let id = "x".repeat(MAX_ID_BYTES);
        let text = format!(r#"{{"id":"{id}","method":"ping"}}"#);
        assert!(matches!(&read(&text)[..], [Incoming::Unknown]));
    }

    #[test]
    fn an_answer_keeps_the_id_of_the_server() {
        let [Incoming::Request { id, .. }] = &read(r#"{"id":"a\"b","method":"ping"}"#)[..] else {
            panic!()
        };
        let reply = write_reply(id, &Reply::Result(serde_json::json!({})));
        assert_eq!(reply, br#"{"jsonrpc":"2.0","id":"a\"b","result":{}}"#);
    }
}
