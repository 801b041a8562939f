//! Messages on the driver socket: the request sent to a driver, and its report.
//!
//! The driver shares its process with the code, so the code can forge a report. Everything in it is
//! therefore truncated, images are validated, and no path in it is opened and no size in it is
//! relied on without a check.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::tools::file::mime;

/// Maximum length of a report: a few figures and their text.
pub const MAX_REPORT_BYTES: usize = 20 << 20;
/// Maximum number of figures.
pub const MAX_FIGURES: usize = 4;
/// Maximum bytes of a figure.
pub const MAX_FIGURE_BYTES: usize = 3 << 20;
/// Maximum pixels of a side. Clients show nothing wider, and an image with more pixels is a
/// decompression bomb.
const MAX_FIGURE_SIDE: u32 = 4096;
const MAX_WARNINGS: usize = 8;

/// A request to a driver.
pub struct DriverRequest<'a> {
    /// Run this code and exit, as a script does.
    pub is_script: bool,
    /// Name of the code in tracebacks.
    pub code_name: &'a str,
    pub code: &'a str,
    /// Path of the code, if it is in a file.
    pub file: &'a str,
    pub figures: &'a str,
    /// Maximum length of a value, in characters.
    pub value_limit: usize,
    pub args: &'a [String],
}

impl DriverRequest<'_> {
    /// Encodes the request, preceded by the driver if that still has to be loaded.
    pub fn encode(&self, driver: Option<&str>) -> Vec<u8> {
        let limit = self.value_limit.to_string();
        let run_mode = if self.is_script { "once" } else { "cell" };
        let mut parts = vec![run_mode, self.code_name, self.code, self.file, self.figures, &limit];
        parts.extend(self.args.iter().map(String::as_str));
        let sizes = parts.iter().map(|part| part.len().to_string()).collect::<Vec<_>>().join(" ");
        let mut message =
            driver.map(|text| format!("{}\n{text}", text.len())).unwrap_or_default().into_bytes();
        message.extend_from_slice(sizes.as_bytes());
        message.push(b'\n');
        parts.iter().for_each(|part| message.extend_from_slice(part.as_bytes()));
        message
    }
}

/// Report of a driver about a piece of code.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DriverReport {
    pub value: Option<String>,
    pub error: Option<CodeException>,
    /// Exit status, of a shell.
    pub status: Option<i32>,
    /// The interpreter exits now.
    pub ended: bool,
    /// PNG images, in base64.
    pub figures: Vec<String>,
    /// Paths of saved figures, as the driver reports them.
    pub saved_figures: Vec<String>,
    pub warnings: Vec<String>,
}

/// An exception that the code raised.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CodeException {
    pub name: String,
    pub message: String,
    pub line: Option<u64>,
    pub traceback: String,
}

impl DriverReport {
    /// Parses a report and truncates its fields.
    pub fn parse(bytes: &[u8], limit: usize) -> DriverReport {
        let mut report = DriverReport::default();
        let mut exception = CodeException::default();
        let text = String::from_utf8_lossy(bytes);
        for field in text.split('\u{1e}') {
            let Some((key, value)) = field.split_once('\u{1f}') else { continue };
            match key {
                // Leaves room for the driver's own truncation mark.
                "value" => report.value = Some(truncate_chars(value, limit + 64)),
                "name" => exception.name = truncate_chars(value, 100),
                "message" => exception.message = truncate_chars(value, limit.min(4096)),
                "line" => exception.line = value.parse().ok(),
                "traceback" => exception.traceback = truncate_middle(value, limit.clamp(512, 8192)),
                "status" => report.status = value.parse().ok(),
                "ended" => report.ended = true,
                "figure" => report.add_figure(value),
                "saved" if report.saved_figures.len() < MAX_FIGURES => {
                    report.saved_figures.push(truncate_chars(value, 4096))
                }
                "warning" if report.warnings.len() < MAX_WARNINGS => {
                    report.warnings.push(truncate_chars(value, 300))
                }
                _ => {}
            }
        }
        if !exception.name.is_empty() {
            report.error = Some(exception);
        }
        report
    }

    fn add_figure(&mut self, text: &str) {
        if self.figures.len() >= MAX_FIGURES {
            return;
        }
        match STANDARD.decode(text) {
            Ok(image) if is_valid_png(&image) => self.figures.push(text.to_owned()),
            _ => self
                .warnings
                .push("a figure was left out: it is not a PNG, or too large to show".to_owned()),
        }
    }
}

/// Returns whether this is a PNG of a size that can be shown, according to its header chunk.
fn is_valid_png(image: &[u8]) -> bool {
    let side = |offset: usize| {
        image
            .get(offset..offset + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u32::from_be_bytes)
            .unwrap_or_default()
    };
    let fits = |side: u32| (1..=MAX_FIGURE_SIDE).contains(&side);
    image.len() <= MAX_FIGURE_BYTES
        && mime::detect_by_content(image) == Some("image/png")
        && image.get(12..16) == Some(b"IHDR")
        && fits(side(16))
        && fits(side(20))
}

/// Truncates text to a number of characters.
pub fn truncate_chars(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Truncates the middle and keeps mostly the end, because that is where a traceback says what
/// happened.
fn truncate_middle(text: &str, max_chars: usize) -> String {
    let count = text.chars().count();
    if count <= max_chars {
        return text.to_owned();
    }
    let head: String = text.chars().take(max_chars / 4).collect();
    let tail: String = text.chars().skip(count - max_chars * 3 / 4).collect();
    format!("{head}\n… [cut] …\n{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut image = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        image.extend_from_slice(&width.to_be_bytes());
        image.extend_from_slice(&height.to_be_bytes());
        image
    }

    fn message(fields: &[(&str, &str)]) -> Vec<u8> {
        fields
            .iter()
            .map(|(key, value)| format!("{key}\u{1f}{value}"))
            .collect::<Vec<_>>()
            .join("\u{1e}")
            .into_bytes()
    }

    #[test]
    fn a_request_is_sizes_and_parts() {
        let args = ["ü".to_owned(), String::new()];
        let request = DriverRequest {
            is_script: true,
            code_name: "<c>",
            code: "a\nb",
            file: "",
            figures: "none",
            value_limit: 9,
            args: &args,
        };
        assert_eq!(request.encode(None), "4 3 3 0 4 1 2 0\nonce<c>a\nbnone9ü".as_bytes());
        assert!(request.encode(Some("é")).starts_with("2\né4 3".as_bytes()));
    }

    #[test]
    fn a_report_is_read_and_bounded() {
        let report =
            DriverReport::parse(&message(&[("value", "42"), ("status", "3"), ("ended", "")]), 100);
        assert_eq!(
            (report.value.as_deref(), report.status, report.ended),
            (Some("42"), Some(3), true)
        );
        let long = "ü".repeat(100_000);
        let fields = [
            ("value", &*long),
            ("name", &long),
            ("message", &long),
            ("traceback", &long),
            ("line", "x"),
        ];
        let report = DriverReport::parse(&message(&fields), 1000);
        assert!(report.value.unwrap().chars().count() < 1100);
        let thrown = report.error.unwrap();
        assert!(thrown.name.chars().count() <= 101 && thrown.message.chars().count() <= 1001);
        assert!(thrown.traceback.chars().count() < 1100 && thrown.line.is_none());
        assert_eq!(
            DriverReport::parse(b"\xff\x1e\x1f\x1e\x00nonsense", 10),
            DriverReport::default()
        );
    }

    #[test]
    fn only_pictures_pass_and_only_four() {
        let good = STANDARD.encode(png(800, 600));
        let bomb = STANDARD.encode(png(100_000, 100_000));
        let page = STANDARD.encode("<html>");
        let fields = [("figure", &*bomb), ("figure", &page), ("figure", "%%%"), ("figure", "")];
        let report = DriverReport::parse(&message(&fields), 10);
        assert!(report.figures.is_empty() && report.warnings.len() == 4);
        let report = DriverReport::parse(&message(&[("figure", &*good); 9]), 10);
        assert_eq!(report.figures.len(), 4);
    }
}
