//! The result of a call, for people: text, and images as files.

use std::fs::OpenOptions;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::base::{Error, Kind, Result};
use crate::cli::screen::escape_shown;

/// Most files of one tool in one directory.
const MAX_FILES: usize = 10_000;

fn add_line(text: &mut String, line: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(line);
    if !line.is_empty() && !line.ends_with('\n') {
        text.push('\n');
    }
}

/// Renders a result. Images and sounds are stored as files in `dir`, and their paths stand in their
/// places.
pub fn render_result(result: &Value, tool: &str, dir: &Path) -> Result<String> {
    let structured = result.get("structuredContent").filter(|value| !value.is_null());
    let is_metadata = |value: &Value| {
        result["_meta"].as_object().is_some_and(|meta| meta.values().any(|other| other == value))
    };
    let mut rendered = String::new();
    for block in result["content"].as_array().into_iter().flatten() {
        match block["type"].as_str() {
            Some("text") => {
                let text = block["text"].as_str().unwrap_or_default();
                match serde_json::from_str::<Value>(text).ok().filter(Value::is_object) {
                    // For clients that show only text; people do not need it twice.
                    Some(value) if Some(&value) == structured => {
                        add_line(&mut rendered, &format!("{value:#}"));
                    }
                    Some(value) if is_metadata(&value) => {}
                    _ => add_line(&mut rendered, text),
                }
            }
            Some(kind @ ("image" | "audio")) => {
                let path = store_media(block, tool, dir)?;
                add_line(&mut rendered, &format!("{kind}: {}", path.display()));
            }
            Some("resource_link") => {
                let uri = block["uri"].as_str().unwrap_or_default();
                add_line(&mut rendered, &format!("resource: {uri}"));
            }
            Some("resource") => {
                let resource = &block["resource"];
                let uri = || format!("resource: {}", resource["uri"].as_str().unwrap_or_default());
                add_line(&mut rendered, &resource["text"].as_str().map_or_else(uri, str::to_owned));
            }
            _ => {}
        }
    }
    if let (true, Some(structured)) = (rendered.is_empty(), structured) {
        add_line(&mut rendered, &format!("{structured:#}"));
    }
    Ok(rendered)
}

/// Returns the text as it may appear on this stream: output of a tool must not drive a terminal.
pub fn prepare_text(text: String, stream: &impl IsTerminal) -> String {
    if stream.is_terminal() { escape_shown(&text) } else { text }
}

fn store_media(block: &Value, tool: &str, dir: &Path) -> Result<PathBuf> {
    let data = block["data"].as_str().unwrap_or_default();
    let bytes = STANDARD.decode(data).map_err(|_| {
        Error::new(Kind::Unavailable, "the server sent an image that is not valid base64")
    })?;
    // The server chooses both; neither may name another directory.
    let stem: String =
        tool.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(64).collect();
    let extension = file_extension(block["mimeType"].as_str().unwrap_or_default());
    for number in 1..=MAX_FILES {
        let path = dir.join(format!("{stem}-{number}.{extension}"));
        // Never opens what exists, so neither a file nor a symbolic link is written through.
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(mut file) => {
                let written = file.write_all(&bytes);
                written.map_err(|error| storage_error(&path, error))?;
                return Ok(path);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(storage_error(&path, error)),
        }
    }
    Err(storage_error(dir, ErrorKind::AlreadyExists.into()))
}

fn storage_error(path: &Path, error: std::io::Error) -> Error {
    Error::new(Kind::Unavailable, format!("{} cannot be written", path.display()))
        .with_hint("The call was made. Name a directory for images with `--images DIR`.")
        .with_source(error)
}

fn file_extension(mime: &str) -> &'static str {
    match mime {
        "image/png" => "png",
        "image/jpeg" => "jpg",
        "image/gif" => "gif",
        "image/webp" => "webp",
        "image/svg+xml" => "svg",
        "audio/wav" | "audio/x-wav" => "wav",
        "audio/mpeg" => "mp3",
        _ => "bin",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::scratch::Scratch;

    #[test]
    fn images_become_new_files_and_nothing_is_written_through() {
        let scratch = Scratch::new();
        let victim = scratch.file("victim", "keep");
        let dir = scratch.dir("images");
        std::os::unix::fs::symlink(&victim, dir.join("a-b-1.png")).unwrap();
        let image =
            json!({"type": "image", "mimeType": "image/png", "data": STANDARD.encode("bytes")});
        let result = json!({"content": [{"type": "text", "text": "seen"}, image]});
        let text = render_result(&result, "a/b", &dir).unwrap();
        let path = dir.join("a-b-2.png");
        assert_eq!(text, format!("seen\nimage: {}\n", path.display()));
        assert_eq!(std::fs::read(&path).unwrap(), b"bytes");
        assert_eq!(std::fs::read(&victim).unwrap(), b"keep");
        assert!(render_result(&result, "x", &scratch.path().join("missing")).is_err());
        let broken = json!({"content": [{"type": "image", "data": "%"}]});
        assert!(render_result(&broken, "x", &dir).is_err());
    }

    #[test]
    fn data_is_shown_once() {
        let render = |result: Value| render_result(&result, "x", Path::new(".")).unwrap();
        let data = json!({"a": 1});
        let shown = "{\n  \"a\": 1\n}\n";
        assert_eq!(render(json!({"content": [], "structuredContent": data})), shown);
        let text = json!({"type": "text", "text": data.to_string()});
        assert_eq!(render(json!({"content": [text], "structuredContent": data})), shown);
        let metadata = json!({"size": 2});
        let read = json!({"_meta": {"m": metadata}, "content": [
            {"type": "text", "text": "hi"}, {"type": "text", "text": metadata.to_string()}
        ]});
        assert_eq!(render(read), "hi\n");
        let json_file = json!({"content": [{"type": "text", "text": "{\"a\":1}"}]});
        assert_eq!(render(json_file), "{\"a\":1}\n");
    }
}
