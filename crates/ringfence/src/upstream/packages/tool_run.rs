//! Runs a package manager in a sandbox, and passes on what it prints.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfence_client::clean_text;
use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::super::start::StartContext;
use crate::base::clock::Deadline;
use crate::base::{Error, Result};
use crate::sandbox::{
    LaunchRequest, OutputRequest, RunOptions, RunOutcome, RunState, SessionSandbox, StdinSource,
};
use crate::tools::run::held_execs::audit_network;

/// Time limit of one command.
const TIME_LIMIT: Duration = Duration::from_secs(15 * 60);
/// Longest line that is passed on, in bytes.
const MAX_LINE_BYTES: usize = 1_000;
/// Bytes of standard error that are kept of a query.
const STDERR_BYTES: usize = 4 << 10;

/// Command to run.
pub struct ToolLaunch<'a> {
    pub program: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub directory: &'a Path,
    /// Standard error goes where standard output goes.
    pub merge_stderr: bool,
}

/// How a command ended.
pub struct ToolEnd {
    pub has_succeeded: bool,
    /// How it ended, for people.
    pub description: String,
    /// Hosts that it tried to reach in vain, with the reason.
    pub refused_hosts: Vec<String>,
}

/// Runs a command to its end. Each line of its output is cleaned, bounded and passed on.
pub async fn run_tool(
    context: &StartContext,
    sandbox: &Arc<SessionSandbox>,
    launch: ToolLaunch<'_>,
    on_line: &mut dyn FnMut(&str),
) -> Result<ToolEnd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let cwd = rustix::fs::open(launch.directory, flags, Mode::empty()).map_err(|error| {
        Error::internal("the directory of the installation cannot be opened").with_source(error)
    })?;
    let request = LaunchRequest {
        program: launch.program,
        args: launch.args,
        cwd,
        cwd_path: launch.directory.to_owned(),
        env: launch.env,
        stdin: StdinSource::Open(Vec::new()),
        merge_stderr: launch.merge_stderr,
        rights: None,
        grace: context.config.limits.grace,
        on_decision: Some(audit_network(&context.call_events)),
        // The operator starts it, and it reaches nothing but its own directory and the registry.
        execs: None,
        denied_hosts: Vec::new(),
        driver_socket: None,
        session_router: None,
    };
    let mut run = sandbox.start_run(request).await?;
    let (stdin, stdout) =
        run.take_streams().ok_or_else(|| Error::internal("the command has no streams"))?;
    drop(stdin);
    let handle = run.into_handle(run_options(context));
    let output = OutputRequest {
        client: None,
        budget: STDERR_BYTES,
        until: Box::pin(std::future::pending()),
        yields_to_next: false,
    };
    let (state, read) = tokio::join!(handle.request_output(output), pass_lines(stdout, on_line));
    read.map_err(|error| {
        Error::internal("the output of the command cannot be read").with_source(error)
    })?;
    match state? {
        RunState::Over(outcome) => Ok(describe_end(&outcome)),
        RunState::Running(_) => Err(Error::internal("the command was abandoned before it ended")),
    }
}

fn run_options(context: &StartContext) -> RunOptions {
    RunOptions {
        outputs: Arc::clone(&context.outputs),
        cancel: context.cancel.clone(),
        deadline: Some(Arc::new(Deadline::after(TIME_LIMIT))),
        budget: STDERR_BYTES,
        max_file_bytes: context.config.limits.output_file_bytes,
        stdout_filter: None,
        on_end: Box::new(|_| Box::pin(async {})),
        on_late_end: None,
        on_forgotten: Box::new(|| {}),
        tasks: context.tasks.clone(),
    }
}

fn describe_end(outcome: &RunOutcome) -> ToolEnd {
    let result = &outcome.result;
    let description = match (result.exit_code, result.signal) {
        _ if result.stop_reason.is_some() => {
            format!("it did not end within {} minutes", TIME_LIMIT.as_secs() / 60)
        }
        (Some(code), _) => format!("it exited with code {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it was lost".to_owned(),
    };
    let refused = result.denials.iter().filter(|denial| denial["kind"] == "network");
    let refused = refused.filter_map(|denial| {
        Some(format!("{} ({})", denial["name"].as_str()?, denial["reason"].as_str()?))
    });
    ToolEnd {
        has_succeeded: result.exit_code == Some(0) && result.stop_reason.is_none(),
        description,
        refused_hosts: refused.take(5).map(|host| clean_text(&host, 200)).collect(),
    }
}

/// Reads until the end, and passes every line on that is not empty.
async fn pass_lines(
    mut output: impl AsyncRead + Unpin,
    on_line: &mut dyn FnMut(&str),
) -> std::io::Result<()> {
    let mut chunk = [0; 4096];
    let mut line: Vec<u8> = Vec::new();
    let mut finish_line = |line: &mut Vec<u8>| {
        let text = clean_text(&String::from_utf8_lossy(line), MAX_LINE_BYTES);
        if !text.trim().is_empty() {
            on_line(text.trim_end());
        }
        line.clear();
    };
    loop {
        let count = output.read(&mut chunk).await?;
        for byte in &chunk[..count] {
            match byte {
                b'\n' | b'\r' => finish_line(&mut line),
                // The rest of an endless line is left out.
                _ if line.len() >= MAX_LINE_BYTES => {}
                _ => line.push(*byte),
            }
        }
        if count == 0 {
            finish_line(&mut line);
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_bounded_and_cleaned() {
        let mut output = b"one\r\n\n\x1b[31mtwo\x1b[0m\rthree\n".to_vec();
        output.extend(vec![b'x'; 3 * MAX_LINE_BYTES]);
        let mut lines = Vec::new();
        pass_lines(&output[..], &mut |line| lines.push(line.to_owned())).await.unwrap();
        assert_eq!(lines[..3], ["one", "two", "three"]);
        assert!(lines.len() == 4 && lines[3].len() <= MAX_LINE_BYTES + 4, "{lines:?}");
    }
}
