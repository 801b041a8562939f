//! The server's own log: lines for people or JSON objects for programs, on standard error or in a
//! file.
//!
//! Must never write to standard output, which belongs to the protocol. Only events of this crate
//! are logged: the protocol engine would log whole requests, and arguments may contain secrets.

use std::borrow::Cow;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::fs::OFlags;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::base::IgnorePoison;
use crate::base::visible::is_hidden_char;
use crate::base::{Error, Kind, Result};
use crate::config::resolve::log::LogSettings;
use crate::config::{LogFormat, LogLevel};

/// Redacts secrets from a line just before it is written.
pub type RedactLine = fn(&str) -> Cow<'_, str>;

/// Opens the log as configured. Every later event goes there, including panics.
pub fn start_logging(log: &LogSettings, redact: RedactLine) -> Result<()> {
    let out = match &log.file {
        Some(path) => LogDestination::File(
            open_log_file(path)
                .map_err(|error| log_file_error(path, "it cannot be opened").with_source(error))?,
        ),
        None => LogDestination::Stderr,
    };
    if let (LogDestination::File(file), Some(path)) = (&out, &log.file)
        && !file.metadata().is_ok_and(|metadata| metadata.is_file())
    {
        return Err(log_file_error(path, "it is not a regular file"));
    }
    let fmt_layer = tracing_subscriber::fmt::layer()
        .with_writer(LogWriter { out: Arc::new(out), redact })
        .with_target(false)
        .with_ansi(false);
    let fmt_layer = match log.format {
        LogFormat::Pretty => fmt_layer.compact().boxed(),
        LogFormat::Json => fmt_layer.json().flatten_event(true).with_span_list(false).boxed(),
    };
    tracing_subscriber::registry()
        .with(fmt_layer)
        .with(Targets::new().with_target("ringfence", level_filter(log.level)))
        .try_init()
        .map_err(|error| Error::internal("cannot start the log").with_source(error))?;
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let payload = panic.payload();
        let message = payload.downcast_ref::<&str>().copied();
        let message = message
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        tracing::error!("panicked at {location}: {message}");
    }));
    Ok(())
}

fn log_file_error(path: &Path, reason: &str) -> Error {
    Error::new(
        Kind::Unavailable,
        format!("the log file {} cannot be used: {reason}", path.display()),
    )
    .with_reason("bad_log_file")
    .with_hint("Give a file in an existing directory with `--log-file` (or RINGFENCE_LOG_FILE).")
}

fn open_log_file(path: &Path) -> io::Result<File> {
    // NOFOLLOW: anyone else who can create links in that directory must not choose the file we
    // write to. NONBLOCK: opening a pipe without a reader must not block.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file =
        OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

enum LogDestination {
    Stderr,
    File(File),
}

/// Destination of log lines; the formatter passes each line in a single write.
struct LogWriter {
    out: Arc<LogDestination>,
    redact: RedactLine,
}

struct LogLineWriter<'a>(&'a LogWriter);

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogLineWriter<'a>;

    fn make_writer(&'a self) -> LogLineWriter<'a> {
        LogLineWriter(self)
    }
}

impl Write for LogLineWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let text = escape_line(&text);
        let text = (self.0.redact)(&text);
        match &*self.0.out {
            LogDestination::Stderr => io::stderr().write_all(text.as_bytes())?,
            LogDestination::File(file) => (&mut &*file).write_all(text.as_bytes())?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Escapes a line so that foreign text in it cannot forge another log line.
fn escape_line(text: &str) -> String {
    let escape = |c: char| match c {
        c if c.is_control() => c.escape_default().collect(),
        // These escapes mean the same in JSON, which itself escapes only some control characters.
        c if is_hidden_char(c) => {
            c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
        }
        c => c.to_string(),
    };
    let body = text.strip_suffix('\n').unwrap_or(text);
    body.chars().map(escape).chain(["\n".to_owned()]).collect()
}

/// Runs `work` and buffers its events, because it runs before the log is open; they are logged
/// later.
pub fn buffer_events<T>(work: impl FnOnce() -> T) -> (T, BufferedEvents) {
    let events = BufferedEvents::default();
    let collector = tracing_subscriber::registry().with(events.clone());
    (tracing::subscriber::with_default(collector, work), events)
}

/// Events buffered before the log was open.
#[derive(Clone, Default)]
pub struct BufferedEvents(Arc<Mutex<Vec<(Level, String)>>>);

impl BufferedEvents {
    /// Logs the buffered events.
    pub fn replay_events(self) {
        for (level, text) in self.0.lock().ignore_poison().drain(..) {
            match level {
                Level::ERROR => tracing::error!("{text}"),
                Level::WARN => tracing::warn!("{text}"),
                Level::INFO => tracing::info!("{text}"),
                _ => tracing::debug!("{text}"),
            }
        }
    }
}

impl<S: Subscriber> Layer<S> for BufferedEvents {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        struct MessageVisitor(String);
        impl Visit for MessageVisitor {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        if !event.metadata().target().starts_with("ringfence") {
            return;
        }
        let mut visitor = MessageVisitor(String::new());
        event.record(&mut visitor);
        self.0.lock().ignore_poison().push((*event.metadata().level(), visitor.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_cannot_hold_another() {
        assert_eq!(escape_line("a\nb\u{1b}[31m\tü\n"), "a\\nb\\u{1b}[31m\\tü\n");
        assert_eq!(
            escape_line("a\u{202e}\u{a0}\u{2028}\u{e0041}\n"),
            "a\\u202e\\u00a0\\u2028\\udb40\\udc41\n"
        );
    }

    #[test]
    fn every_line_passes_the_redactor() {
        let folder = crate::config::scratch::Scratch::new();
        let path = folder.path().join("log");
        let redact: RedactLine = |line| line.replace("hunter2", "[secret]").into();
        let lines = LogWriter {
            out: Arc::new(LogDestination::File(open_log_file(&path).unwrap())),
            redact,
        };
        let layer = tracing_subscriber::fmt::layer().with_writer(lines).with_ansi(false).json();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(password = "hunter2", "it is hunter2");
        });
        let written = std::fs::read_to_string(&path).unwrap();
        assert!(
            !written.contains("hunter2") && written.matches("[secret]").count() == 2,
            "{written}"
        );
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_is_said_too_early_is_kept() {
        let ((), held) = buffer_events(|| tracing::warn!("too early"));
        assert_eq!(*held.0.lock().unwrap(), [(Level::WARN, "too early".to_owned())]);
    }
}
