//! Detects the MIME type of a file from its first bytes, or from its name.

/// Magic numbers of formats that are not text.
const MAGIC: &[(&[u8], &str)] = &[
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"\xfd7zXZ\0", "application/x-xz"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"BZh", "application/x-bzip2"),
    (b"\x7fELF", "application/x-elf"),
    (b"SQLite format 3\0", "application/vnd.sqlite3"),
    (b"\0asm", "application/wasm"),
];

const EXTENSIONS: &[(&str, &str)] = &[
    ("css", "text/css"),
    ("csv", "text/csv"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("js", "text/javascript"),
    ("json", "application/json"),
    ("md", "text/markdown"),
    ("mjs", "text/javascript"),
    ("svg", "image/svg+xml"),
    ("toml", "application/toml"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
];

/// Detects formats that are not text from their first bytes.
pub fn detect_by_content(head: &[u8]) -> Option<&'static str> {
    if head.len() >= 12 && &head[..4] == b"RIFF" && &head[8..12] == b"WEBP" {
        return Some("image/webp");
    }
    MAGIC.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, mime)| *mime)
}

/// Detects the type from the file extension.
pub fn detect_by_name(path: &str) -> Option<&'static str> {
    let (_, extension) = path.rsplit_once('.')?;
    EXTENSIONS
        .iter()
        .find(|(known, _)| extension.eq_ignore_ascii_case(known))
        .map(|(_, mime)| *mime)
}

/// Returns whether results include files of this type as images.
pub fn is_viewable_image(mime: &str) -> bool {
    matches!(mime, "image/png" | "image/jpeg" | "image/gif" | "image/webp")
}
