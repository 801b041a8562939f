//! Runs the code of one call: starts or finds an interpreter and sends it the code.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};
use tokio::sync::OwnedMutexGuard;

use super::artifacts::{ArtifactList, FilesBefore};
use super::driver_exchange::{CodeTurn, SharedDriverSocket, lock_driver_socket};
use super::driver_messages::{self, DriverRequest};
use super::reply::{self, CodeRunInfo};
use super::runtimes::{CodeDelivery, InstalledRuntime, RUNTIMES};
use super::{Args, FigureMode};
use crate::base::call::{Prepared, ToolOutput};
use crate::base::{CancelCause, Error, Kind, Result};
use crate::sandbox::{DriverSocket, Launcher, OutputRequest, StdinSource, StopReason};
use crate::tools::RunCx;
use crate::tools::run::background::{BackgroundRun, BackgroundRuns};
use crate::tools::run::command::{self, CommandRequest, StartedCommand};

/// Maximum number of interpreters that stay alive in one session.
pub const MAX_INTERPRETERS: usize = 8;

const PYTHON: [&str; 2] = [include_str!("boot.py"), include_str!("driver.py")];
const JAVASCRIPT: [&str; 2] = [include_str!("boot.js"), include_str!("driver.js")];
const BASH: &str = include_str!("driver.sh");
/// Opens code that was passed as a descriptor; this path is the only name it has.
const BY_DESCRIPTOR: &str =
    r#"line=$RINGFENCE_LINE; unset RINGFENCE_LINE; p=$1; shift; exec "$p" "/dev/fd/$line" "$@""#;

/// One call that runs code.
pub struct CodeRun<'a> {
    pub cx: &'a Arc<RunCx>,
    pub launcher: &'a Launcher,
    pub installed: &'a InstalledRuntime,
    pub arguments: &'a Args,
}

impl CodeRun<'_> {
    /// Runs the code in an interpreter that exits afterwards.
    pub async fn run_once(&self, call: Prepared) -> Result<ToolOutput> {
        let (file, delivery) = (
            self.arguments.resolve_file(&self.cx.settings.workspace)?,
            self.installed.runtime.delivery,
        );
        let (socket, peer_fd) = DriverSocket::new_pair(driver_messages::MAX_REPORT_BYTES)?;
        // Bash exposes the script's own file in many ways that a driver could not imitate, so it
        // runs the file directly.
        let (args, sends_report) = match (delivery, &file) {
            (CodeDelivery::Bash, Some(file)) => (vec![file.clone()], false),
            _ => (boot_args(delivery, file.as_deref()), delivery != CodeDelivery::Bash),
        };
        let runs_directly = delivery == CodeDelivery::Bash && file.is_some();
        let args =
            if runs_directly { [args, self.arguments.program_args()].concat() } else { args };
        // A bash script runs at once, so the snapshot comes first. Other interpreters start up
        // while it is taken and run nothing yet.
        let early_snapshot = if runs_directly { Some(self.capture_files().await) } else { None };
        let command =
            self.build_command(args, (!runs_directly).then_some(peer_fd), self.build_stdin())?;
        let started = command::start_command(self.cx, call, self.launcher, command, None).await?;
        let files_before = match early_snapshot {
            Some(files_before) => files_before,
            None => self.capture_files().await,
        };
        let message = match runs_directly {
            true => Vec::new(),
            false => {
                self.build_request(true, "<code>", file.as_deref()).encode(driver_source(delivery))
            }
        };
        self.run_cell(
            &started,
            private_socket(socket)?,
            message,
            false,
            sends_report,
            files_before,
            None,
        )
        .await
    }

    /// Runs the code in an interpreter that has no driver: as an unnamed file, or through standard
    /// input.
    pub async fn run_without_driver(&self, call: Prepared) -> Result<ToolOutput> {
        let file = self.arguments.resolve_file(&self.cx.settings.workspace)?;
        let code = self.arguments.code.clone().unwrap_or_default();
        let leading_args = self.installed.program.leading_args.iter().map(|arg| (*arg).to_owned());
        let mut line = None;
        let mut stdin = self.build_stdin();
        let mut command = match (file, self.installed.runtime.delivery) {
            (Some(file), _) => self.build_command(
                leading_args.chain([file]).chain(self.arguments.program_args()).collect(),
                None,
                stdin,
            )?,
            (None, CodeDelivery::Stdin) => {
                stdin = StdinSource::Bytes(code.into_bytes());
                self.build_command(
                    leading_args
                        .chain(["-".to_owned()])
                        .chain(self.arguments.program_args())
                        .collect(),
                    None,
                    stdin,
                )?
            }
            (None, _) => {
                line = Some(code_memfd(&code)?);
                let program = self.installed.path.display().to_string();
                let shell_args =
                    ["-c".to_owned(), BY_DESCRIPTOR.to_owned(), "sh".to_owned(), program];
                self.build_command(
                    shell_args.into_iter().chain(self.arguments.program_args()).collect(),
                    None,
                    stdin,
                )?
            }
        };
        if line.is_some() {
            command.program = "/bin/sh".to_owned();
            command.driver_socket = line;
        }
        let files_before = self.capture_files().await;
        let started = command::start_command(self.cx, call, self.launcher, command, None).await?;
        let (line, _) = DriverSocket::new_pair(driver_messages::MAX_REPORT_BYTES)?;
        self.run_cell(&started, private_socket(line)?, Vec::new(), false, false, files_before, None)
            .await
    }

    /// Runs the code in an interpreter that stays alive for the session.
    pub async fn run_in_session(&self, call: Prepared, session: &str) -> Result<ToolOutput> {
        if !self.cx.session_ref.persistent {
            return Err(Error::invalid_arguments("`session` needs a persistent session")
                .with_reason("no_session")
                .with_hint(
                    "Send the session handle of an earlier result's `_meta` along with the call.",
                ));
        }
        let file = self.arguments.resolve_file(&self.cx.settings.workspace)?;
        let (runs, language) =
            (Arc::clone(self.cx.background_runs()), self.installed.runtime.language);
        let (interpreter, is_new) = match session {
            "new" => (self.start_interpreter(call, &runs, None).await?, true),
            id => {
                let interpreter = find_interpreter(&runs, id, language)?;
                match self.arguments.reset {
                    Some(true) => {
                        self.stop_interpreter(&runs, &interpreter).await?;
                        (self.start_interpreter(call, &runs, Some(id)).await?, true)
                    }
                    _ => (interpreter, false),
                }
            }
        };
        let Some(socket) = interpreter.driver_socket.clone() else {
            return Err(Error::internal("the interpreter has no driver socket"));
        };
        let socket_guard = lock_driver_socket(&socket)?;
        interpreter.attach_call(self.cx, Vec::new()).await?;
        let name = format!("<cell-{}>", self.cx.session_ref.state.next_cell());
        let driver = driver_source(self.installed.runtime.delivery).filter(|_| is_new);
        let message = self.build_request(false, &name, file.as_deref()).encode(driver);
        let files_before = self.capture_files().await;
        let output = self
            .run_cell(
                &interpreter.started,
                (socket, socket_guard),
                message,
                true,
                true,
                files_before,
                Some(&interpreter),
            )
            .await;
        if interpreter.end_status().is_some() {
            runs.remove(&interpreter);
        }
        output
    }

    /// Starts an interpreter that stays alive, under the handle of one that it replaces, if any.
    async fn start_interpreter(
        &self,
        call: Prepared,
        runs: &BackgroundRuns,
        id: Option<&str>,
    ) -> Result<Arc<BackgroundRun>> {
        runs.check_room()?;
        let is_interpreter = |interpreter: &&Arc<BackgroundRun>| {
            RUNTIMES.iter().any(|runtime| runtime.language == interpreter.kind)
        };
        let running_count = runs
            .list_oldest_first()
            .iter()
            .filter(is_interpreter)
            .filter(|interpreter| interpreter.end_status().is_none())
            .count();
        if running_count >= MAX_INTERPRETERS {
            return Err(Error::new(
                Kind::ResourceExhausted,
                format!("{running_count} interpreters are already running in this session"),
            )
            .with_hint(
                "Use one of them (shell.session `op: list`), or end some with `op: close`.",
            ));
        }
        let (socket, peer_fd) = DriverSocket::new_pair(driver_messages::MAX_REPORT_BYTES)?;
        let args = boot_args(self.installed.runtime.delivery, None);
        let command = self.build_command(args, Some(peer_fd), StdinSource::Empty)?;
        let started = command::start_command(self.cx, call, self.launcher, command, None).await?;
        let program_name = self.installed.program.name;
        let mut interpreter = BackgroundRun::new(
            self.installed.runtime.language,
            program_name,
            started,
            Some(socket),
        );
        if let Some(id) = id {
            interpreter.id = id.to_owned();
        }
        Ok(runs.insert(interpreter))
    }

    async fn stop_interpreter(
        &self,
        runs: &BackgroundRuns,
        interpreter: &Arc<BackgroundRun>,
    ) -> Result<()> {
        interpreter.started.run_handle.stop(StopReason::Cancelled(CancelCause::Client));
        runs.remove(interpreter);
        let cancel = self.cx.control.cancel.clone();
        let until = Box::pin(async move {
            cancel.cancelled().await;
        });
        interpreter
            .started
            .read_output(OutputRequest { client: None, budget: 1024, until, yields_to_next: false })
            .await
            .map(drop)
    }

    #[expect(clippy::too_many_arguments, reason = "each of the three ways has its own")]
    async fn run_cell(
        &self,
        started: &StartedCommand,
        (socket, socket_guard): (SharedDriverSocket, OwnedMutexGuard<DriverSocket>),
        message: Vec<u8>,
        stays_alive: bool,
        sends_report: bool,
        files_before: FilesBefore,
        interpreter: Option<&BackgroundRun>,
    ) -> Result<ToolOutput> {
        let (cx, budget) =
            (self.cx, StartedCommand::output_budget(self.cx, self.arguments.max_bytes));
        let turn = CodeTurn {
            socket,
            socket_guard,
            message,
            stays_alive,
            sends_report,
            value_limit: value_limit(budget),
        };
        // Leaves a quarter for the value, the traceback and the files.
        let started_at = Instant::now();
        let (run_state, mut turn_report) = turn.run_code(cx, started, budget - budget / 4).await?;
        let took = started_at.elapsed();
        let saved_figures = turn_report
            .report
            .as_mut()
            .map(|report| std::mem::take(&mut report.saved_figures))
            .unwrap_or_default();
        let artifacts: ArtifactList = files_before.list_artifacts(saved_figures).await;
        let session = interpreter.map(|interpreter| interpreter.id.as_str());
        let run_info = CodeRunInfo {
            profile: started.profile,
            took,
            session,
            language: self.installed.runtime.language,
        };
        reply::build_output(cx, &run_info, run_state, turn_report, artifacts)
    }

    async fn capture_files(&self) -> FilesBefore {
        FilesBefore::capture(&self.cx.settings.workspace, &self.cx.control.cancel).await
    }

    fn build_command(
        &self,
        args: Vec<String>,
        driver_socket: Option<OwnedFd>,
        stdin: StdinSource,
    ) -> Result<CommandRequest> {
        Ok(CommandRequest {
            program: self.installed.path.display().to_string(),
            args,
            cwd: self.arguments.cwd.clone().unwrap_or_else(|| ".".to_owned()),
            env: self.arguments.build_env(self.installed.runtime.delivery)?,
            stdin,
            driver_socket,
            streaming: true,
            merged: false,
            max_bytes: self.arguments.max_bytes,
        })
    }

    fn build_stdin(&self) -> StdinSource {
        match &self.arguments.stdin {
            Some(text) => StdinSource::Bytes(text.clone().into_bytes()),
            None => StdinSource::Empty,
        }
    }

    fn build_request<'r>(
        &'r self,
        is_script: bool,
        code_name: &'r str,
        file: Option<&'r str>,
    ) -> DriverRequest<'r> {
        let budget = StartedCommand::output_budget(self.cx, self.arguments.max_bytes);
        DriverRequest {
            is_script,
            code_name,
            code: self.arguments.code.as_deref().unwrap_or_default(),
            file: file.unwrap_or_default(),
            figures: match self.arguments.figures.unwrap_or_default() {
                FigureMode::Inline => "inline",
                FigureMode::File => "file",
                FigureMode::None => "none",
            },
            value_limit: value_limit(budget),
            args: self.arguments.args.as_deref().unwrap_or_default(),
        }
    }
}

/// Wraps a socket that no other call uses.
fn private_socket(
    socket: DriverSocket,
) -> Result<(SharedDriverSocket, OwnedMutexGuard<DriverSocket>)> {
    let socket = Arc::new(tokio::sync::Mutex::new(socket));
    let socket_guard = lock_driver_socket(&socket)?;
    Ok((socket, socket_guard))
}

/// Returns the maximum length of a value and of a traceback.
fn value_limit(budget: usize) -> usize {
    budget / 8
}

/// Returns the arguments that an interpreter is started with. The driver itself follows over the
/// socket, except that of bash, which must be on the first line so that the line numbers of the
/// code are right.
fn boot_args(delivery: CodeDelivery, script_name: Option<&str>) -> Vec<String> {
    let args: &[&str] = match delivery {
        CodeDelivery::Python => &["-c", PYTHON[0].trim_ascii_end()],
        CodeDelivery::JavaScript => &["-e", JAVASCRIPT[0].trim_ascii_end()],
        _ => &["--noprofile", "--norc", "-c", BASH, script_name.unwrap_or("bash")],
    };
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

fn driver_source(delivery: CodeDelivery) -> Option<&'static str> {
    match delivery {
        CodeDelivery::Python => Some(PYTHON[1]),
        CodeDelivery::JavaScript => Some(JAVASCRIPT[1]),
        _ => None,
    }
}

fn code_memfd(code: &str) -> Result<OwnedFd> {
    let failed = |error: std::io::Error| {
        Error::internal("cannot pass the code to the interpreter").with_source(error)
    };
    let file = memfd_create("code", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    let mut file = File::from(file);
    file.write_all(code.as_bytes()).and_then(|()| file.rewind()).map_err(failed)?;
    Ok(file.into())
}

/// Returns the interpreter with this handle, if it runs this language.
pub fn find_interpreter(
    runs: &BackgroundRuns,
    id: &str,
    language: &str,
) -> Result<Arc<BackgroundRun>> {
    let interpreter = runs.get(id)?;
    if interpreter.kind != language {
        let message =
            format!("`{}` is not a {language} session ({})", interpreter.id, interpreter.kind);
        return Err(Error::invalid_arguments(message).with_hint("`session: \"new\"` starts one."));
    }
    Ok(interpreter)
}
