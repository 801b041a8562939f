//! Results of a server's tool as our client gets them: bounded, cleaned if the server is not
//! trusted, and without what could pass for ours.

use std::io::Write;

use base64::Engine;
use ringfence_client::{RawJson, clean_text};
use serde_json::{Map, Value};

use crate::base::call::{CallFacts, CallStatus, OutputBlock, ToolOutput};
use crate::base::ids::short_id;
use crate::base::{Error, Kind, Result};
use crate::redact::known_secrets;
use crate::sandbox::cut_text;
use crate::session::OutputStore;
use crate::tools::arguments::schema_check::SchemaCheck;

/// Prefixes of `_meta` keys that mean something to our client, and that no server may set.
const RESERVED_META: [&str; 5] =
    ["dev.ringfence/", "io.modelcontextprotocol/", "modelcontextprotocol.io/", "codex/", "mcp/"];
/// Largest `_meta` of a server that is passed on.
const MAX_META_BYTES: usize = 16 << 10;
/// Blocks of one result.
const MAX_BLOCKS: usize = 1_000;
/// Base64 text of an image beyond which it is stored instead.
const MAX_IMAGE_CHARS: usize = 4 << 20;
/// Shorter texts are not searched for in other parts of the result.
const MIN_REPEATED_CHARS: usize = 1_000;
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

/// Converts a result.
pub fn convert_result(raw: &RawJson, options: &ResultOptions<'_>) -> Result<ToolOutput> {
    convert_value(raw.parse().unwrap_or_default(), raw.get().len(), options)
}

fn convert_value(result: Value, bytes: usize, options: &ResultOptions<'_>) -> Result<ToolOutput> {
    let Value::Object(mut members) = result else {
        return Err(Error::new(Kind::Unavailable, "the server's result is not an object")
            .with_reason("bad_response"));
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
    let mut media = Vec::new();
    let left_out = blocks.len().saturating_sub(MAX_BLOCKS);
    for block in blocks.into_iter().take(MAX_BLOCKS) {
        output.content.push(convert_block(block, options, &mut media)?);
    }
    if left_out > 0 {
        output.content.push(OutputBlock::Text(format!("[{left_out} more blocks were left out]")));
    }
    remove_repeated_media(&mut output, &media);
    check_structured(&mut output, options);
    drop_long_structured(&mut output, options);
    shorten_texts(&mut output, options)?;
    Ok(output)
}

/// Takes over `_meta`, without the keys that only we or the protocol may set.
fn take_meta(members: &mut Map<String, Value>) -> Map<String, Value> {
    let Some(Value::Object(mut meta)) = members.shift_remove("_meta") else { return Map::new() };
    meta.retain(|key, _| !RESERVED_META.iter().any(|prefix| key.starts_with(prefix)));
    match serde_json::to_string(&meta).is_ok_and(|text| text.len() <= MAX_META_BYTES) {
        true => meta,
        false => Map::new(),
    }
}

fn convert_block(
    block: Value,
    options: &ResultOptions<'_>,
    media: &mut Vec<String>,
) -> Result<OutputBlock> {
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
    media: &mut Vec<String>,
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
    if data.len() >= MIN_REPEATED_CHARS {
        media.push(data.to_owned());
    }
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

/// Removes copies of images from texts and structured content: a model would read them as text.
fn remove_repeated_media(output: &mut ToolOutput, media: &[String]) {
    if media.is_empty() {
        return;
    }
    let shorten = |text: &mut String| {
        for data in media {
            if text.len() >= data.len() && text.contains(data.as_str()) {
                *text = text.replace(data.as_str(), "[see the image]");
            }
        }
    };
    for block in &mut output.content {
        if let OutputBlock::Text(text) = block {
            shorten(text);
        }
    }
    output.structured.iter_mut().for_each(|value| for_each_text(value, &shorten));
}

fn for_each_text(value: &mut Value, change: &impl Fn(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| for_each_text(item, change)),
        Value::Object(members) => {
            members.values_mut().for_each(|member| for_each_text(member, change));
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
        Some(value) => match check.find_violations(value) {
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
        let clean = |text: &mut String| *text = clean_text(text, usize::MAX);
        for block in &mut output.content {
            if let OutputBlock::Wire(wire) = block {
                for_each_text(wire, &clean);
            }
            if let Some(text) = block_text(block) {
                let cleaned = clean_text(text, usize::MAX);
                *text = delimit_text(&cleaned, options.server_id);
            }
        }
        output.structured.iter_mut().for_each(|value| for_each_text(value, &clean));
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
