use clap::Parser;
use serde_json::{Value, json};

use super::*;
use crate::audit::{AuditLog, CallRecord};
use crate::base::TraceId;
use crate::base::call::CallFacts;
use crate::base::ids::short_id;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: AuditArgs,
}

fn args(words: &[&str]) -> AuditArgs {
    Cli::try_parse_from([&["audit"], words].concat()).unwrap_or_else(|error| panic!("{error}")).args
}

struct Root(PathBuf);

impl Root {
    fn new() -> Self {
        Root(std::env::temp_dir().join(short_id("ringfence-cli-audit")))
    }

    fn output(&self, words: &[&str]) -> (u8, String) {
        let mut out = Vec::new();
        let code = run(args(words), &self.0, &mut out).unwrap();
        (code, String::from_utf8(out).unwrap())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn call(audit: &AuditLog, tool: &str, session: &str) -> TraceId {
    let trace = TraceId::generate();
    let mut record = CallRecord::open(
        audit,
        &trace,
        [("tool", tool.into()), ("session", session.into()), ("principal", "alice".into())],
    );
    record.write_start().unwrap();
    record.finish(&CallFacts { exit_code: Some(7), ..CallFacts::default() }, None, None);
    trace
}

#[test]
fn filters_pick_and_json_is_the_line_as_it_is() {
    let root = Root::new();
    let (one, two) =
        (AuditLog::open(&root.0, 1 << 20).unwrap(), AuditLog::open(&root.0, 1 << 20).unwrap());
    let trace = call(&one, "shell.exec", "s-1");
    call(&two, "file.read", "s-1");
    call(&one, "shell.exec", "s-2");

    let lines =
        |words: &[&str]| root.output(words).1.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&[]).len(), 8);
    assert_eq!(lines(&["--tool", "shell.exec"]).len(), 4);
    assert_eq!(lines(&["--session", "s-1"]).len(), 4);
    assert_eq!(lines(&["--session", "s-1", "--tool", "shell.exec"]).len(), 2);
    assert_eq!(lines(&["--since", "10m"]).len(), 8);
    assert_eq!(lines(&["--since", "2999-01-01"]).len(), 0);
    let [start, stop] = &lines(&["--trace", &trace.as_str()[..12]])[..] else { panic!() };
    assert!(start.contains("call.start") && stop.contains("call.stop"));
    for part in ["shell.exec", "completed", "alice/s-1", trace.as_str(), "exit 7"] {
        assert!(stop.contains(part), "{part} in {stop}");
    }
    assert_eq!(start.find(trace.as_str()), stop.find(trace.as_str()), "aligned");

    let name = std::fs::read_dir(root.0.join("audit")).unwrap().map(|entry| entry.unwrap().path());
    let mut raw: Vec<String> = name
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .flat_map(|path| {
            std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let mut printed = lines(&["--json"]);
    let times: Vec<Value> = printed
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["ts"].take())
        .collect();
    assert!(times.is_sorted_by_key(|ts| ts.as_str().unwrap().to_owned()));
    raw.sort();
    printed.sort();
    assert_eq!(printed, raw);
}

#[test]
fn verify_says_so_and_its_exit_code_does_too() {
    let root = Root::new();
    let audit = AuditLog::open(&root.0, 1 << 20).unwrap();
    call(&audit, "shell.exec", "s-1");
    let (code, text) = root.output(&["verify"]);
    assert_eq!(code, 0);
    assert!(
        text.contains("open (in use)") && text.ends_with("3 records in 1 file: chain intact\n"),
        "{text}"
    );
    drop(audit);
    let name = text.split_whitespace().next().unwrap();
    let path = root.0.join("audit").join(name);
    let original = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, original.replacen("alice", "mal\u{1b}", 1)).unwrap();
    let (code, text) = root.output(&["verify"]);
    assert_eq!(code, 1);
    assert!(
        text.contains(&format!("BROKEN: {name} line 2 (seq 2): its mac does not match")),
        "{text}"
    );
    std::fs::write(&path, original).unwrap();
    assert_eq!(root.output(&["verify"]).0, 0);
}

#[test]
fn without_a_log_it_says_where_to_look() {
    let root = Root::new();
    for words in [&[][..], &["verify"]] {
        let error = run(args(words), &root.0, &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.hint_text().unwrap().contains("--root"));
    }
    assert!(!root.0.exists(), "reading makes nothing");
}

/// Closes after a number of lines, and writes the next events itself: what is seen was written
/// after following began.
struct Pipe<'a> {
    lines: Vec<String>,
    more: Box<dyn FnMut(usize) + 'a>,
    limit: usize,
}

impl Write for Pipe<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.lines.len() == self.limit {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        match self.lines.last_mut() {
            Some(last) if !last.ends_with('\n') => last.push_str(&text),
            _ => self.lines.push(text),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let seen = self.lines.len();
        (self.more)(seen);
        Ok(())
    }
}

#[test]
fn follow_sees_growth_and_new_files_and_ends_with_its_reader() {
    let root = Root::new();
    let audit = AuditLog::open(&root.0, 1 << 20).unwrap();
    call(&audit, "one", "s-1");
    let mut others = Vec::new();
    let mut pipe = Pipe {
        lines: Vec::new(),
        limit: 6,
        more: Box::new(|seen| match seen {
            2 => drop(call(&audit, "two", "s-1")),
            4 => {
                others.push(AuditLog::open(&root.0, 1 << 20).unwrap());
                call(&others[0], "three", "s-1");
            }
            // The seventh line finds the pipe closed.
            _ => drop(call(&audit, "four", "s-1")),
        }),
    };
    assert_eq!(
        run(args(&["--follow", "--json", "--session", "s-1"]), &root.0, &mut pipe).unwrap(),
        0
    );
    let tools: Vec<_> = pipe
        .lines
        .iter()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["tool"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(tools, ["one", "one", "two", "two", "three", "three"]);
}

#[test]
fn the_root_may_stand_before_or_after_verify() {
    for words in [&["--root", "/r", "verify"][..], &["verify", "--root", "/r"], &["--root", "/r"]] {
        assert_eq!(args(words).root.as_deref(), Some(Path::new("/r")));
    }
    for words in [["--follow", "verify"], ["--json", "verify"], ["--tool=x", "verify"]] {
        let error = run(args(&words), Path::new("/r"), &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArguments);
    }
    assert!(Cli::try_parse_from(["audit", "--since", "yesterday"]).is_err());
}

#[test]
fn since_takes_ages_and_times_and_nothing_else() {
    for good in
        ["30s", "10m", "2h", "7d", "1w", "2026-11-15", "2026-11-15T21:40", "2026-11-15T21:40:03.5Z"]
    {
        assert!(parse_since(good).is_ok(), "{good}");
    }
    assert_eq!(parse_since("2026-11-15T21:40:03Z").unwrap(), "2026-11-15T21:40:03");
    for bad in [
        "",
        "m",
        "10",
        "10y",
        "-5m",
        "yesterday",
        "2026-11",
        "2026-11-15T21:40:03+02:00",
        "2026-13-01",
        "2026-02-31",
        "2026-11-15T25:00",
        "2026-11-15T21:60",
        "10µ",
    ] {
        assert!(parse_since(bad).is_err(), "{bad}");
    }
}

#[test]
fn names_cannot_drive_the_terminal() {
    let line = format_event(
        &json!({"ts": "2026-11-15T21:40:03.1Z", "event": "x", "tool": "\u{1b}[2J\u{202e}\u{9b}"}),
    );
    assert!(line.contains("\\u{1b}[2J\\u{202e}\\u{9b}"), "{line:?}");
}
