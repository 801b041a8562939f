//! Results of a server's tool as our client gets them: bounded, cleaned if the server is not
//! trusted, and without what could pass for ours.

mod repeated_media;

use std::io::Write;

use base64::Engine;
use ringfence_client::clean_text;
use serde_json::{Map, Value};

use crate::base::call::{CallFacts, CallStatus, OutputBlock, ToolOutput};
use crate::base::ids::short_id;
use crate::base::{Error, Kind, Result};
use crate::redact::known_secrets;
use crate::sandbox::cut_text;
use crate::session::OutputStore;
use crate::tools::arguments::schema_check::SchemaCheck;

use repeated_media::RepeatedMedia;

/// Parts of the prefix of a `_meta` key that only we, the protocol or our client may use.
const RESERVED_LABELS: [&str; 4] = ["mcp", "modelcontextprotocol", "ringfence", "codex"];
/// Values of one result. More take many times their length in memory.
const MAX_VALUES: usize = 200_000;
/// Largest `_meta` of a server that is passed on.
const MAX_META_BYTES: usize = 16 << 10;
/// Blocks of one result.
const MAX_BLOCKS: usize = 1_000;
/// Base64 text of an image beyond which it is stored instead.
const MAX_IMAGE_CHARS: usize = 4 << 20;
/// Types of blocks that clients know.
const KNOWN_BLOCKS: [&str; 5] = ["text", "image", "audio", "resource", "resource_link"];

/// How results of one call are converted.
pub struct ResultOptions<'a> {
    pub server_id: &'a str,
    pub is_trusted: bool,
    /// Bytes of text that our client accepts.
    pub text_budget: usize,
    /// Where longer texts are stored.
    pub outputs: &'a OutputStore,
    /// Checks the structured content, for a tool that declares its form.
    pub output_check: Option<&'a SchemaCheck>,
}

/// Converts a result. One that cannot be read is an error that says where all of it is.
pub fn convert_result(text: &str, options: &ResultOptions<'_>) -> Result<ToolOutput> {
    if count_values(text) > MAX_VALUES {
        return store_unreadable(text, "it has too many values", options);
    }
    match serde_json::from_str::<Value>(text) {
        Ok(result) => match find_malformed(&result) {
            None => convert_value(result, text.len(), options),
            Some(problem) => store_unreadable(text, problem, options),
        },
        Err(_) => store_unreadable(text, "it is nested too deeply", options),
    }
}

/// Returns the number of values in a JSON text, roughly: it is not parsed, because that takes the
/// memory which the number is to bound.
fn count_values(text: &str) -> usize {
    let (mut count, mut in_string, mut is_escaped) = (0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

/// Returns what keeps a client from reading a result. To guess would turn a failure into a success.
fn find_malformed(result: &Value) -> Option<&'static str> {
    let Value::Object(members) = result else { return Some("it is not an object") };
    match (members.get("content"), members.get("isError")) {
        (Some(content), _) if !content.is_array() => Some("its content is not a list"),
        (_, Some(is_error)) if !is_error.is_boolean() => Some("`isError` is not a boolean"),
        _ => None,
    }
}

/// Stores a result that cannot be passed on, and returns the error.
fn store_unreadable(text: &str, problem: &str, options: &ResultOptions<'_>) -> Result<ToolOutput> {
    let handle = store_output(options.outputs, &known_secrets::redact_bytes(text.as_bytes()))?;
    let message =
        format!("the result of the server `{}` cannot be used: {problem}", options.server_id);
    Err(Error::new(Kind::Unavailable, message)
        .with_reason("bad_response")
        .with_hint(format!("The whole result is stored as {handle}.")))
}

fn convert_value(result: Value, bytes: usize, options: &ResultOptions<'_>) -> Result<ToolOutput> {
    let Value::Object(mut members) = result else {
        return Err(Error::internal("a result that is not an object was not refused"));
    };
    // First of all, since parts of it may be stored.
    known_secrets::redact_map(&mut members);
    let is_error = members.get("isError").and_then(Value::as_bool).unwrap_or(false);
    let mut output = ToolOutput {
        is_error,
        structured: members.shift_remove("structuredContent").filter(|value| !value.is_null()),
        meta: take_meta(&mut members),
        facts: CallFacts {
            status: Some(if is_error { CallStatus::Failed } else { CallStatus::Completed }),
            stdout_bytes: Some(bytes as u64),
            ..CallFacts::default()
        },
        ..ToolOutput::default()
    };
    let blocks = match members.shift_remove("content") {
        Some(Value::Array(blocks)) => blocks,
        _ => Vec::new(),
    };
    let mut media = RepeatedMedia::default();
    let left_out = blocks.len().saturating_sub(MAX_BLOCKS);
    for block in blocks.into_iter().take(MAX_BLOCKS) {
        output.content.push(convert_block(block, options, &mut media)?);
    }
    if left_out > 0 {
        output.content.push(OutputBlock::Text(format!("[{left_out} more blocks were left out]")));
    }
    media.remove_copies(&mut output);
    shorten_links(&mut output, options);
    check_structured(&mut output, options);
    drop_long_structured(&mut output, options);
    shorten_texts(&mut output, options)?;
    Ok(output)
}

/// Takes over `_meta`, without the keys that only we or the protocol may set.
fn take_meta(members: &mut Map<String, Value>) -> Map<String, Value> {
    let Some(Value::Object(meta)) = members.shift_remove("_meta") else { return Map::new() };
    // Cleaned first: what is invisible in a key does not make it another one to a reader.
    let keys = meta.into_iter().map(|(key, value)| (clean_text(&key, usize::MAX), value));
    let meta: Map<String, Value> = keys.filter(|(key, _)| !is_reserved_key(key)).collect();
    match serde_json::to_string(&meta).is_ok_and(|text| text.len() <= MAX_META_BYTES) {
        true => meta,
        false => Map::new(),
    }
}

/// Returns whether only we, the protocol or our client may set this key of `_meta`.
fn is_reserved_key(key: &str) -> bool {
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix).to_lowercase();
    prefix.split('.').any(|label| RESERVED_LABELS.contains(&label))
}

/// Filters the `_meta` of a block and of the resource in it.
fn filter_block_meta(block: &mut Value) {
    let Value::Object(members) = block else { return };
    let meta = take_meta(members);
    if !meta.is_empty() {
        members.insert("_meta".to_owned(), Value::Object(meta));
    }
    if let Some(resource) = members.get_mut("resource") {
        filter_block_meta(resource);
    }
}

fn convert_block(
    mut block: Value,
    options: &ResultOptions<'_>,
    media: &mut RepeatedMedia,
) -> Result<OutputBlock> {
    filter_block_meta(&mut block);
    let kind = block["type"].as_str().unwrap_or_default();
    match kind {
        "text" => Ok(OutputBlock::Text(block["text"].as_str().unwrap_or_default().to_owned())),
        "image" | "audio" => convert_media(block, options, media),
        "resource" if block["resource"]["blob"].is_string() => convert_media(block, options, media),
        known if KNOWN_BLOCKS.contains(&known) => Ok(OutputBlock::Wire(block)),
        // A client rejects a whole result over a type that it does not know.
        _ => Ok(OutputBlock::Text(block.to_string())),
    }
}

/// Keeps an image as an image; one that is too large becomes a stored output.
fn convert_media(
    block: Value,
    options: &ResultOptions<'_>,
    media: &mut RepeatedMedia,
) -> Result<OutputBlock> {
    let (data, mime) = match block["type"] == "resource" {
        true => (&block["resource"]["blob"], &block["resource"]["mimeType"]),
        false => (&block["data"], &block["mimeType"]),
    };
    let data = data.as_str().unwrap_or_default();
    let mime = clean_text(mime.as_str().unwrap_or("application/octet-stream"), 100);
    let bytes = base64::engine::general_purpose::STANDARD.decode(data);
    let Ok(bytes) = bytes else {
        return Ok(OutputBlock::Text(format!("[{mime} that is not valid base64 was left out]")));
    };
    media.add(data);
    if data.len() <= MAX_IMAGE_CHARS {
        return Ok(match block["type"] == "image" {
            true => OutputBlock::Image { data: data.to_owned(), mime },
            false => OutputBlock::Wire(block),
        });
    }
    let handle = store_output(options.outputs, &bytes)?;
    Ok(OutputBlock::Text(format!("[{mime}, {} bytes, stored as {handle}]", bytes.len())))
}

fn store_output(outputs: &OutputStore, bytes: &[u8]) -> Result<String> {
    let mut output = outputs.create_output()?;
    output
        .write_all(bytes)
        .map_err(|error| Error::internal("cannot store the output").with_source(error))?;
    Ok(output.handle.clone())
}

/// Replaces links by one text, which can be cut, if they are longer than the texts may be.
fn shorten_links(output: &mut ToolOutput, options: &ResultOptions<'_>) {
    let total: usize = output.content.iter().map(link_bytes).sum();
    if total <= options.text_budget {
        return;
    }
    let is_link = |block: &OutputBlock| link_bytes(block) > 0;
    let (links, mut content): (Vec<_>, Vec<_>) = output.content.drain(..).partition(is_link);
    let links = links.into_iter().filter_map(|block| match block {
        OutputBlock::Wire(wire) => Some(wire.to_string()),
        OutputBlock::Text(_) | OutputBlock::Image { .. } => None,
    });
    content.push(OutputBlock::Text(links.collect::<Vec<_>>().join("\n")));
    output.content = content;
}

/// Returns the length of a block that is neither text nor data: a link, or an embedded resource
/// without its text.
fn link_bytes(block: &OutputBlock) -> usize {
    let OutputBlock::Wire(wire) = block else { return 0 };
    let resource = &wire["resource"];
    let content = [&wire["data"], &resource["blob"], &resource["text"]];
    let content: usize = content.iter().map(|one| one.to_string().len()).sum();
    wire.to_string().len().saturating_sub(content)
}

/// Cleans texts and the names of members, which a model reads as well.
fn clean_value(value: &mut Value) {
    match value {
        Value::String(text) => *text = clean_text(text, usize::MAX),
        Value::Array(items) => items.iter_mut().for_each(clean_value),
        Value::Object(members) => {
            members.values_mut().for_each(clean_value);
            if members.keys().any(|name| clean_text(name, usize::MAX) != *name) {
                let renamed = std::mem::take(members).into_iter();
                *members =
                    renamed.map(|(name, value)| (clean_text(&name, usize::MAX), value)).collect();
            }
        }
        _ => {}
    }
}

/// Checks structured content by the server's own schema. Clients reject a result that does not
/// match, so such a result becomes an error that still has everything as text.
fn check_structured(output: &mut ToolOutput, options: &ResultOptions<'_>) {
    let Some(check) = options.output_check else { return };
    if output.is_error {
        return;
    }
    let problem = match &output.structured {
        None => "there is no structured content".to_owned(),
        Some(value) => match check.check_result(value) {
            violations if violations.is_empty() => return,
            violations => violations.join("; "),
        },
    };
    keep_structured_as_text(output);
    output.is_error = true;
    output.facts.status = Some(CallStatus::Failed);
    let note = format!(
        "The result of the server `{}` does not match the form that it declares: {problem}. What it sent follows.",
        options.server_id
    );
    output.content.insert(0, OutputBlock::Text(note));
}

/// Replaces structured content that is too long by its text, which can be cut. A form that the tool
/// declares must be kept.
fn drop_long_structured(output: &mut ToolOutput, options: &ResultOptions<'_>) {
    if options.output_check.is_some() {
        return;
    }
    let length = output.structured.as_ref().map_or(0, |value| value.to_string().len());
    if length > options.text_budget {
        keep_structured_as_text(output);
    }
}

/// Replaces structured content by its text, unless a text says the same already.
fn keep_structured_as_text(output: &mut ToolOutput) {
    let Some(value) = output.structured.take() else { return };
    let is_same = |block: &OutputBlock| match block {
        OutputBlock::Text(text) => {
            serde_json::from_str::<Value>(text).is_ok_and(|said| said == value)
        }
        OutputBlock::Image { .. } | OutputBlock::Wire(_) => false,
    };
    if !output.content.iter().any(is_same) {
        output.content.push(OutputBlock::Text(value.to_string()));
    }
}

/// Cleans and cuts the texts. What is cut can be read on as a stored output.
fn shorten_texts(output: &mut ToolOutput, options: &ResultOptions<'_>) -> Result<()> {
    if !options.is_trusted {
        for block in &mut output.content {
            if let OutputBlock::Wire(wire) = block {
                clean_value(wire);
            }
            if let Some(text) = block_text(block) {
                let mut cleaned = clean_text(text, usize::MAX);
                // Again, since invisible characters may have split a secret.
                known_secrets::redact_text(&mut cleaned);
                *text = delimit_text(&cleaned, options.server_id);
            }
        }
        output.structured.iter_mut().for_each(clean_value);
        output.meta.values_mut().for_each(clean_value);
    }
    let mut texts: Vec<&mut String> = output.content.iter_mut().filter_map(block_text).collect();
    let total: usize = texts.iter().map(|text| text.len()).sum();
    if total <= options.text_budget {
        return Ok(());
    }
    let budget = options.text_budget / texts.len().max(1);
    for text in texts.iter_mut().filter(|text| text.len() > budget) {
        let handle = store_output(options.outputs, text.as_bytes())?;
        **text = cut_text(text, budget, &handle);
    }
    Ok(())
}

/// Returns the text of a block that a model reads, of an embedded resource too.
fn block_text(block: &mut OutputBlock) -> Option<&mut String> {
    match block {
        OutputBlock::Text(text) => Some(text),
        OutputBlock::Wire(wire) => match wire.pointer_mut("/resource/text") {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        OutputBlock::Image { .. } => None,
    }
}

/// Marks where text of a server that no one vouches for begins and ends. The mark is new each time,
/// so that the text cannot contain it.
fn delimit_text(text: &str, server_id: &str) -> String {
    let mark = short_id("end");
    format!("[text of the untrusted server `{server_id}`, up to {mark}]\n{text}\n[{mark}]")
}

#[cfg(test)]
mod tests;
