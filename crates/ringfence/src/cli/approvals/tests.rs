use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};

use clap::Parser;

use super::*;
use crate::approval::terminal::socket_directory;
use crate::config::scratch::Scratch;

/// A person who types the given lines, one per question.
struct Person {
    manned: bool,
    lines: VecDeque<Option<&'static str>>,
    seen: String,
}

impl Person {
    fn typing(lines: &[Option<&'static str>]) -> Person {
        Person { manned: true, lines: lines.iter().copied().collect(), seen: String::new() }
    }

    fn absent() -> Person {
        Person { manned: false, ..Person::typing(&[]) }
    }
}

impl ApproverConsole for Person {
    fn is_interactive(&self) -> bool {
        self.manned
    }

    fn show_message(&mut self, text: &str) -> Result<()> {
        self.seen.push_str(text);
        Ok(())
    }

    fn print_output(&mut self, text: &str) -> Result<()> {
        self.show_message(text)
    }

    fn discard_input(&mut self) {
        self.seen.push_str("<flush>");
    }

    /// `None` is a moment in which nothing was typed; the end of the script is the end of input.
    fn read_line(&mut self, _within: Duration) -> Result<Option<String>> {
        Ok(self.lines.pop_front().unwrap_or(Some("")).map(str::to_owned))
    }
}

/// A server that speaks the socket's language from plain data. `reply` sees each request.
fn server(
    root: &Path,
    pid: u32,
    mut reply: impl FnMut(&Value) -> Value + Send + 'static,
) -> PathBuf {
    std::fs::create_dir_all(socket_directory(root)).unwrap();
    let path = socket_directory(root).join(format!("server-{pid}.sock"));
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            let answer = reply(&serde_json::from_str(&line).unwrap());
            stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
    });
    path
}

/// A server with these questions, and the answers it got.
fn asking(root: &Path, pid: u32, ids: &[&str]) -> Arc<Mutex<Vec<Value>>> {
    let answers = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&answers);
    let mut open: Vec<Value> = ids.iter().map(|id| prompt(id)).collect();
    server(root, pid, move |request| {
        let Some(answer) = request.get("answer") else { return json!({"pending": open}) };
        let before = open.len();
        open.retain(|prompt| prompt["id"] != answer["id"]);
        kept.lock().unwrap().push(answer.clone());
        match before != open.len() {
            true => json!({"ok": true}),
            false => json!({"ok": false, "error": "gone\u{1b}[2J"}),
        }
    });
    answers
}

fn prompt(id: &str) -> Value {
    json!({
        "id": id, "trace_id": "t", "tool": "shell.exec", "description": "Runs.", "why": "It \u{1b}[31mleaves the fence.",
        "principal": "ada", "session": "s-1", "workspace": "/w", "cwd": "/w", "profile": "default", "effects": ["exec"],
        "arguments": {"command": "ls\u{202e}"}, "asked_unix_ms": 4, "expires_unix_ms": 5, "offers_session": true,
    })
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    approvals: ApprovalsArgs,
}

fn run_line(root: &Path, line: &str, person: &mut Person) -> Result<()> {
    let words = std::iter::once("approvals").chain(line.split_whitespace());
    run_with_console(&Line::try_parse_from(words).unwrap().approvals, root, person)
}

fn own() -> u32 {
    std::process::id()
}

#[test]
fn nothing_waits_where_no_server_runs() {
    let scratch = Scratch::new();
    let mut person = Person::absent();
    run_line(scratch.path(), "", &mut person).unwrap();
    assert_eq!(person.seen, "No calls are waiting for approval.\n");
}

#[test]
fn a_root_that_no_server_has_used_is_an_error() {
    let scratch = Scratch::new();
    for root in [scratch.path().join("missing"), scratch.path().to_owned()] {
        let error = check_root_used(&root).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert_eq!(error.message(), format!("no server has used the root {}", root.display()));
        assert!(error.hint_text().unwrap().contains("`--root`"), "{error:?}");
    }
    scratch.dir("audit");
    check_root_used(scratch.path()).unwrap();
}

#[test]
fn questions_of_all_servers_are_listed_without_anything_a_terminal_acts_on() {
    let scratch = Scratch::new();
    asking(scratch.path(), own(), &["a-1"]);
    asking(scratch.path(), 1, &["a-2"]);
    let mut person = Person::absent();
    run_line(scratch.path(), "", &mut person).unwrap();
    for text in [
        "a-1",
        "a-2",
        "shell.exec",
        "(server 1, asked ",
        " ago, expires in 0 s)",
        "\\u{1b}[31mleaves",
        "ls\\u{202e}",
    ] {
        assert!(person.seen.contains(text), "{text}: {}", person.seen);
    }
    assert!(!person.seen.contains(['\u{1b}', '\u{202e}']));

    let mut person = Person::absent();
    run_line(scratch.path(), "--json", &mut person).unwrap();
    assert!(person.seen.is_ascii() && !person.seen.contains('\u{1b}'));
    let listed: Value = serde_json::from_str(&person.seen).unwrap();
    assert_eq!(listed["pending"][0]["arguments"]["command"], "ls\u{202e}");
    assert_eq!(listed["pending"][1]["server"], 1);
}

#[test]
fn sockets_of_crashed_servers_are_skipped_and_removed() {
    let scratch = Scratch::new();
    asking(scratch.path(), own(), &["a-1"]);
    let run = socket_directory(scratch.path());
    // Beyond the largest process number there can be; and one whose process lives but does not
    // listen.
    let (dead, silent) = (run.join("server-4194305.sock"), run.join("server-1.sock"));
    drop((UnixListener::bind(&dead).unwrap(), UnixListener::bind(&silent).unwrap()));
    let other = scratch.file("run/notes.txt", "");
    assert_eq!(collect_questions(scratch.path()).unwrap().len(), 1);
    assert!(!dead.exists() && silent.exists() && other.exists());
}

#[test]
fn answers_go_to_the_server_that_asked() {
    let scratch = Scratch::new();
    let one = asking(scratch.path(), own(), &["a-1", "a-2"]);
    let other = asking(scratch.path(), 1, &["a-3"]);
    let mut person = Person::typing(&[]);
    run_line(scratch.path(), "allow a-1", &mut person).unwrap();
    run_line(scratch.path(), "allow a-3 --session", &mut person).unwrap();
    run_line(scratch.path(), "deny a-2", &mut person).unwrap();
    assert_eq!(
        *one.lock().unwrap(),
        [json!({"id": "a-1", "answer": "once"}), json!({"id": "a-2", "answer": "deny"})]
    );
    assert_eq!(*other.lock().unwrap(), [json!({"id": "a-3", "answer": "session"})]);
    assert_eq!(
        person.seen,
        "Allowed once: `shell.exec`\nAllowed for this session: `shell.exec`\nDenied: `shell.exec`\n"
    );
    assert_eq!(
        run_line(scratch.path(), "allow a-1", &mut person).unwrap_err().kind(),
        Kind::NotFound
    );
}

#[test]
fn nobody_at_the_terminal_nothing_answered() {
    let scratch = Scratch::new();
    let answers = asking(scratch.path(), own(), &["a-1"]);
    for line in ["allow a-1", "deny a-1", "--watch"] {
        let error = run_line(scratch.path(), line, &mut Person::absent()).unwrap_err();
        assert_eq!(error.reason_name(), Some("no_terminal"), "{line}");
    }
    assert!(answers.lock().unwrap().is_empty());
}

#[test]
fn a_watch_asks_one_by_one_and_forgets_what_was_typed_before() {
    let scratch = Scratch::new();
    let answers = asking(scratch.path(), own(), &["a-1", "a-2", "a-3"]);
    let mut person = Person::typing(&[
        Some("what?\n"),
        None,
        Some("y\n"),
        Some("S\n"),
        Some("n\n"),
        None,
        Some("q\n"),
    ]);
    run_line(scratch.path(), "--watch", &mut person).unwrap();
    let given: Vec<Value> =
        answers.lock().unwrap().iter().map(|answer| answer["answer"].clone()).collect();
    assert_eq!(given, ["once", "session", "deny"]);
    assert_eq!(person.seen.matches("<flush>").count(), 3);
    assert!(person.lines.is_empty());
}

#[test]
fn a_watch_ends_with_its_input_and_leaves_the_question_open() {
    let scratch = Scratch::new();
    let answers = asking(scratch.path(), own(), &["a-1"]);
    run_line(scratch.path(), "--watch", &mut Person::typing(&[])).unwrap();
    run_line(scratch.path(), "--watch", &mut Person::typing(&[Some("q\n")])).unwrap();
    assert!(answers.lock().unwrap().is_empty());
}

#[test]
fn a_question_that_goes_away_is_said_to_be_gone() {
    let scratch = Scratch::new();
    let mut lists = 0;
    server(scratch.path(), own(), move |_| {
        lists += 1;
        json!({"pending": if lists == 1 { vec![prompt("a-1")] } else { Vec::new() }})
    });
    let mut person = Person::typing(&[None, Some("q\n")]);
    run_line(scratch.path(), "--watch", &mut person).unwrap();
    assert!(person.seen.contains("answered elsewhere"), "{}", person.seen);
}

#[test]
fn an_answer_that_is_not_taken_is_said_and_not_asked_again() {
    let scratch = Scratch::new();
    server(scratch.path(), own(), |request| match request.get("answer") {
        Some(_) => json!({"ok": false, "error": "answers do not count\u{1b}[2J"}),
        None => json!({"pending": [prompt("a-1")]}),
    });
    let mut person = Person::typing(&[Some("y\n"), Some("q\n")]);
    run_line(scratch.path(), "--watch", &mut person).unwrap();
    assert!(
        person.seen.contains("Answer rejected: answers do not count\\u{1b}[2J"),
        "{}",
        person.seen
    );
    assert_eq!(person.seen.matches("<flush>").count(), 1);
}

#[test]
fn inside_is_an_answer_where_it_is_offered() {
    let scratch = Scratch::new();
    let taken = Arc::new(Mutex::new(Vec::new()));
    let answers = Arc::clone(&taken);
    server(scratch.path(), own(), move |request| {
        let mut answers = answers.lock().unwrap();
        if let Some(answer) = request.get("answer") {
            answers.push(answer.clone());
            return json!({"ok": true});
        }
        let mut outside = prompt("a-2");
        outside["offers_inside"] = json!(true);
        let mut stateless = prompt("a-3");
        stateless["offers_session"] = json!(false);
        let open = [prompt("a-1"), outside, stateless].into_iter();
        let open = open.filter(|prompt| !answers.iter().any(|answer| answer["id"] == prompt["id"]));
        json!({"pending": open.collect::<Vec<_>>()})
    });
    let mut person = Person::typing(&[
        Some("i\n"),
        Some("n\n"),
        Some("i\n"),
        Some("s\n"),
        Some("y\n"),
        Some("q\n"),
    ]);
    for line in ["allow a-1 --inside", "allow a-3 --session"] {
        let error = run_line(scratch.path(), line, &mut person).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArguments, "{line}");
    }
    assert!(taken.lock().unwrap().is_empty());
    run_line(scratch.path(), "--watch", &mut person).unwrap();
    let given: Vec<Value> =
        taken.lock().unwrap().iter().map(|answer| answer["answer"].clone()).collect();
    assert_eq!(given, ["deny", "inside", "once"]);
    assert_eq!(person.seen.matches("[i] Run it inside the sandbox").count(), 1, "{}", person.seen);
    assert_eq!(
        person.seen.matches("[s] ").count(),
        3,
        "twice for the first, once for the second: {}",
        person.seen
    );
}
