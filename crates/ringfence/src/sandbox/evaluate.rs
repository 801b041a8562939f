//! Evaluates rules files in a child process. `rules::evaluate` says why and limits itself from
//! within; this module limits the child from outside.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rules::evaluate::{CHILD_ARGUMENT, EvaluateRequest};
use rules::{HostExecutables, ParsedRules, RulesError, RulesSource};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::{Instant, timeout_at};

use super::Launcher;

/// Time limit for all files together, however many children they take.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Size limit for the answers about all files, far above what anyone writes by hand.
const MAX_ANSWER_BYTES: u64 = 16 << 20;

/// Evaluates these files, in this order. Returns a reading for each of them: a file that kills its
/// child costs only itself. `host_executables` is what earlier files said about which programs may
/// use a name.
pub async fn evaluate_rules(
    launcher: &Launcher,
    sources: &[RulesSource],
    host_executables: &HostExecutables,
) -> Vec<ParsedRules> {
    evaluate_within(MAX_ANSWER_BYTES, launcher, sources, host_executables).await
}

async fn evaluate_within(
    mut remaining_bytes: u64,
    launcher: &Launcher,
    sources: &[RulesSource],
    host_executables: &HostExecutables,
) -> Vec<ParsedRules> {
    let deadline = Instant::now() + TIME_LIMIT;
    let mut host_executables = host_executables.clone();
    let mut parsed_files: Vec<ParsedRules> = Vec::new();
    while let Some(rest) = sources.get(parsed_files.len()..).filter(|rest| !rest.is_empty()) {
        let previous_count = parsed_files.len();
        let request = EvaluateRequest { sources: rest.to_vec(), known: host_executables.clone() };
        let end_reason = match timeout_at(
            deadline,
            run_evaluator(launcher, &request, &mut parsed_files, &mut remaining_bytes),
        )
        .await
        {
            Ok(Ok(status)) => explain_exit(status),
            Ok(Err(error)) => format!("the rules evaluator failed: {error}"),
            Err(_) => format!("reading the rules took more than {} s", TIME_LIMIT.as_secs()),
        };
        for parsed in parsed_files.iter().skip(previous_count) {
            host_executables.extend(parsed.table.host_executables.clone());
        }
        // The first file without an answer is the one that ended the child.
        if let Some(source) = sources.get(parsed_files.len()) {
            let faults = vec![RulesError::for_file(&source.name, &end_reason)];
            parsed_files.push(ParsedRules { faults, ..ParsedRules::default() });
        }
    }
    parsed_files
}

/// Runs one child, which is gone when this is done or dropped.
async fn run_evaluator(
    launcher: &Launcher,
    request: &EvaluateRequest,
    parsed_files: &mut Vec<ParsedRules>,
    remaining_bytes: &mut u64,
) -> io::Result<ExitStatus> {
    if *remaining_bytes == 0 {
        return Err(too_many_rules());
    }
    let mut command = launcher.build_command(CHILD_ARGUMENT);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("it has no pipes"));
    };
    let mut request_line = serde_json::to_vec(request)?;
    request_line.push(b'\n');
    let send_request = async {
        // A child that died before it had read everything shows that by its status.
        let _ = stdin.write_all(&request_line).await;
        drop(stdin);
    };
    let answers =
        read_answers(BufReader::new(stdout), request.sources.len(), parsed_files, remaining_bytes);
    let ((), answers) = tokio::join!(send_request, answers);
    answers?;
    child.wait().await
}

async fn read_answers(
    mut stdout: BufReader<tokio::process::ChildStdout>,
    count: usize,
    parsed_files: &mut Vec<ParsedRules>,
    remaining_bytes: &mut u64,
) -> io::Result<()> {
    for _ in 0..count {
        let mut line = Vec::new();
        *remaining_bytes -=
            (&mut stdout).take(*remaining_bytes).read_until(b'\n', &mut line).await? as u64;
        if line.last() != Some(&b'\n') {
            return if *remaining_bytes == 0 { Err(too_many_rules()) } else { Ok(()) };
        }
        parsed_files.push(serde_json::from_slice(&line)?);
    }
    Ok(())
}

fn too_many_rules() -> io::Error {
    io::Error::other("there are too many rules in total")
}

fn explain_exit(status: ExitStatus) -> String {
    match status.signal() {
        // SIGKILL is how the kernel enforces the limit on CPU time.
        Some(9) => "reading this file takes more than 5 s of CPU time: simplify it".to_owned(),
        Some(signal) => {
            format!(
                "reading this file takes too much memory or nests too deeply (signal {signal}): simplify it"
            )
        }
        None => "the rules evaluator ended without an answer about this file".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::launcher;
    use super::*;

    fn source(name: &str, text: &str) -> RulesSource {
        RulesSource { name: name.to_owned(), text: text.to_owned() }
    }

    #[tokio::test]
    async fn a_file_that_ends_its_reader_costs_only_itself() {
        let deep = format!("x = {}{}", "(".repeat(200_000), ")".repeat(200_000));
        let sources = [
            source("first", r#"prefix_rule(["a"], "forbidden")"#),
            source("deep", &deep),
            source("large", "x = 'a' * (1 << 33)"),
            source("last", "host_executable('b', ['/b'])\nprefix_rule(['b'], match = ['/b'])"),
        ];
        let readings = evaluate_rules(&launcher(), &sources, &HostExecutables::new()).await;
        let faults: Vec<usize> = readings.iter().map(|reading| reading.faults.len()).collect();
        assert_eq!(faults, [0, 1, 1, 0], "{readings:#?}");
        assert!(readings[1].faults[0].message.contains("simplify it"), "{readings:#?}");
        assert_eq!(readings[0].table.prefixes.len() + readings[3].table.prefixes.len(), 2);
        assert_eq!(readings[3].examples, 1);
    }

    #[tokio::test]
    async fn what_one_child_learned_about_programs_the_next_one_knows() {
        let deep = format!("x = {}{}", "(".repeat(200_000), ")".repeat(200_000));
        let sources = [
            source("first", "host_executable('git', ['/usr/bin/git'])"),
            source("deep", &deep),
            source("last", "prefix_rule(['git'], not_match = ['/opt/git'])"),
        ];
        let readings = evaluate_rules(&launcher(), &sources, &HostExecutables::new()).await;
        assert!(readings[2].faults.is_empty(), "{readings:#?}");
    }

    #[tokio::test]
    async fn no_more_rules_come_back_than_there_is_room_for() {
        let many = source("many", "x = [prefix_rule(['a' * 2000], 'prompt') for _ in range(10)]");
        let sources = [
            source("first", "prefix_rule(['a'])"),
            many.clone(),
            many,
            source("last", "prefix_rule(['b'])"),
        ];
        let readings =
            evaluate_within(10_000, &launcher(), &sources, &HostExecutables::new()).await;
        assert!(readings.len() == 4 && readings[0].faults.is_empty(), "{}", readings.len());
        for reading in &readings[1..] {
            assert!(reading.faults[0].message.contains("too many rules"), "{}", reading.faults[0]);
        }
    }

    #[tokio::test]
    async fn a_binary_that_cannot_be_started_is_a_fault_of_every_file() {
        let sources = [source("a", ""), source("b", "")];
        let readings =
            evaluate_rules(&Launcher::new("/nonexistent"), &sources, &HostExecutables::new()).await;
        assert!(
            readings.len() == 2 && readings.iter().all(|reading| reading.faults.len() == 1),
            "{readings:#?}"
        );
    }
}
