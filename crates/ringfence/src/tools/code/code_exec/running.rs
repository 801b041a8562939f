//! Runs the code of one call: starts or finds an interpreter and sends it the code.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};
use tokio::sync::OwnedMutexGuard;

use super::artifacts::{Before, Made};
use super::reply::{self, Place};
use super::report::{self, Request};
use super::runtimes::{Found, RUNTIMES, Way};
use super::turn::{SharedLine, Turn, take_floor};
use super::{Arguments, Figures};
use crate::base::call::{Output, Prepared};
use crate::base::{Cause, Error, Kind, Result};
use crate::sandbox::{DriverSocket, Launcher, OutputRequest, StdinSource, StopReason};
use crate::tools::RunCx;
use crate::tools::run::command::{self, Command, Started};
use crate::tools::run::runs::{Kept, Runs};

/// Maximum number of interpreters that stay alive in one session.
pub const SESSIONS: usize = 8;

const PYTHON: [&str; 2] = [include_str!("boot.py"), include_str!("driver.py")];
const JAVASCRIPT: [&str; 2] = [include_str!("boot.js"), include_str!("driver.js")];
const BASH: &str = include_str!("driver.sh");
/// Opens code that was passed as a descriptor; this path is the only name it has.
const BY_DESCRIPTOR: &str =
    r#"line=$RINGFENCE_LINE; unset RINGFENCE_LINE; p=$1; shift; exec "$p" "/dev/fd/$line" "$@""#;

/// Numbers the code of a session, for names in tracebacks.
#[derive(Default)]
struct Cells(AtomicU64);

/// One call that runs code.
pub struct Running<'a> {
    pub cx: &'a Arc<RunCx>,
    pub launcher: &'a Launcher,
    pub found: &'a Found,
    pub arguments: &'a Arguments,
}

impl Running<'_> {
    /// Runs the code in an interpreter that exits afterwards.
    pub async fn once(&self, call: Prepared) -> Result<Output> {
        let (file, way) = (self.arguments.file_in(&self.cx.workspace)?, self.found.runtime.way);
        let (line, theirs) = DriverSocket::new_pair(report::LONGEST)?;
        // Bash exposes the script's own file in many ways that a driver could not imitate, so it
        // runs the file directly.
        let (args, reports) = match (way, &file) {
            (Way::Bash, Some(file)) => (vec![file.clone()], false),
            _ => (boot(way, file.as_deref()), way != Way::Bash),
        };
        let direct = way == Way::Bash && file.is_some();
        let args = if direct { [args, self.arguments.words()].concat() } else { args };
        // A bash script runs at once, so the snapshot comes first. Other interpreters start up
        // while it is taken and run nothing yet.
        let early = if direct { Some(self.before().await) } else { None };
        let command = self.command(args, (!direct).then_some(theirs), self.stdin())?;
        let started = command::start(self.cx, call, self.launcher, command, None).await?;
        let before = match early {
            Some(before) => before,
            None => self.before().await,
        };
        let message = match direct {
            true => Vec::new(),
            false => self.request(true, "<code>", file.as_deref()).encode(driver(way)),
        };
        self.turn(&started, alone(line)?, message, false, reports, before, None).await
    }

    /// Runs the code in an interpreter that has no driver: as an unnamed file, or through standard
    /// input.
    pub async fn plainly(&self, call: Prepared) -> Result<Output> {
        let file = self.arguments.file_in(&self.cx.workspace)?;
        let code = self.arguments.code.clone().unwrap_or_default();
        let words = self.found.program.words.iter().map(|word| (*word).to_owned());
        let mut line = None;
        let mut stdin = self.stdin();
        let mut command = match (file, self.found.runtime.way) {
            (Some(file), _) => self.command(
                words.chain([file]).chain(self.arguments.words()).collect(),
                None,
                stdin,
            )?,
            (None, Way::Stdin) => {
                stdin = StdinSource::Bytes(code.into_bytes());
                self.command(
                    words.chain(["-".to_owned()]).chain(self.arguments.words()).collect(),
                    None,
                    stdin,
                )?
            }
            (None, _) => {
                line = Some(nameless(&code)?);
                let program = self.found.path.display().to_string();
                let fixed = ["-c".to_owned(), BY_DESCRIPTOR.to_owned(), "sh".to_owned(), program];
                self.command(
                    fixed.into_iter().chain(self.arguments.words()).collect(),
                    None,
                    stdin,
                )?
            }
        };
        if line.is_some() {
            command.program = "/bin/sh".to_owned();
            command.line = line;
        }
        let before = self.before().await;
        let started = command::start(self.cx, call, self.launcher, command, None).await?;
        let (line, _) = DriverSocket::new_pair(report::LONGEST)?;
        self.turn(&started, alone(line)?, Vec::new(), false, false, before, None).await
    }

    /// Runs the code in an interpreter that stays alive for the session.
    pub async fn in_session(&self, call: Prepared, session: &str) -> Result<Output> {
        if !self.cx.view.persistent {
            return Err(Error::invalid_arguments("`session` needs a persistent session")
                .reason("no_session")
                .hint(
                    "Send the session handle of an earlier result's `_meta` along with the call.",
                ));
        }
        let file = self.arguments.file_in(&self.cx.workspace)?;
        let (runs, language) = (Runs::of(&self.cx.session)?, self.found.runtime.language);
        let (kept, fresh) = match session {
            "new" => (self.start(call, &runs, None).await?, true),
            id => {
                let kept = interpreter(&runs, id, language)?;
                match self.arguments.reset {
                    Some(true) => {
                        self.end(&runs, &kept).await?;
                        (self.start(call, &runs, Some(id)).await?, true)
                    }
                    _ => (kept, false),
                }
            }
        };
        let Some(line) = kept.line.clone() else {
            return Err(Error::internal("the interpreter has no driver socket"));
        };
        let floor = take_floor(&line)?;
        kept.take_up(self.cx, Vec::new()).await?;
        let number = self
            .cx
            .session
            .get_or_create(|| Ok(Cells::default()))?
            .0
            .fetch_add(1, Ordering::Relaxed)
            + 1;
        let name = format!("<cell-{number}>");
        let driver = driver(self.found.runtime.way).filter(|_| fresh);
        let message = self.request(false, &name, file.as_deref()).encode(driver);
        let before = self.before().await;
        let output =
            self.turn(&kept.started, (line, floor), message, true, true, before, Some(&kept)).await;
        if kept.ended().is_some() {
            runs.remove(&kept);
        }
        output
    }

    /// Starts an interpreter that stays alive, under the handle of one that it replaces, if any.
    async fn start(&self, call: Prepared, runs: &Runs, id: Option<&str>) -> Result<Arc<Kept>> {
        runs.check_room()?;
        let of_ours =
            |kept: &&Arc<Kept>| RUNTIMES.iter().any(|runtime| runtime.language == kept.what);
        let living =
            runs.list().iter().filter(of_ours).filter(|kept| kept.ended().is_none()).count();
        if living >= SESSIONS {
            return Err(Error::new(
                Kind::ResourceExhausted,
                format!("{living} interpreters are already running in this session"),
            )
            .hint("Use one of them (shell.session `op: list`), or end some with `op: close`."));
        }
        let (line, theirs) = DriverSocket::new_pair(report::LONGEST)?;
        let args = boot(self.found.runtime.way, None);
        let command = self.command(args, Some(theirs), StdinSource::Empty)?;
        let started = command::start(self.cx, call, self.launcher, command, None).await?;
        let shown = self.found.program.name;
        let mut kept = Kept::new(self.found.runtime.language, shown, started, Some(line));
        if let Some(id) = id {
            kept.id = id.to_owned();
        }
        Ok(runs.insert(kept))
    }

    async fn end(&self, runs: &Runs, kept: &Arc<Kept>) -> Result<()> {
        kept.started.live.stop(StopReason::Cancelled(Cause::Client));
        runs.remove(kept);
        let cancel = self.cx.cancel.clone();
        let until = Box::pin(async move {
            cancel.cancelled().await;
        });
        kept.started
            .look(OutputRequest { client: None, budget: 1024, until, yields_to_next: false })
            .await
            .map(drop)
    }

    #[expect(clippy::too_many_arguments, reason = "each of the three ways has its own")]
    async fn turn(
        &self,
        started: &Started,
        (line, floor): (SharedLine, OwnedMutexGuard<DriverSocket>),
        message: Vec<u8>,
        lives_on: bool,
        reports: bool,
        before: Before,
        kept: Option<&Kept>,
    ) -> Result<Output> {
        let (cx, budget) = (self.cx, Started::budget(self.cx, self.arguments.max_bytes));
        let turn = Turn { line, floor, message, lives_on, reports, limit: value_limit(budget) };
        // Leaves a quarter for the value, the traceback and the files.
        let begun = Instant::now();
        let (seen, mut heard) = turn.take(cx, started, budget - budget / 4).await?;
        let took = begun.elapsed();
        let saved = heard
            .report
            .as_mut()
            .map(|report| std::mem::take(&mut report.saved))
            .unwrap_or_default();
        let made: Made = before.compare(saved).await;
        let session = kept.map(|kept| kept.id.as_str());
        let place = Place {
            profile: started.profile,
            took,
            session,
            language: self.found.runtime.language,
        };
        reply::output(cx, &place, seen, heard, made)
    }

    async fn before(&self) -> Before {
        Before::take(&self.cx.workspace, &self.cx.cancel).await
    }

    fn command(
        &self,
        args: Vec<String>,
        line: Option<OwnedFd>,
        stdin: StdinSource,
    ) -> Result<Command> {
        Ok(Command {
            program: self.found.path.display().to_string(),
            args,
            cwd: self.arguments.cwd.clone().unwrap_or_else(|| ".".to_owned()),
            env: self.arguments.environment(self.found.runtime.way)?,
            stdin,
            line,
            streaming: true,
            merged: false,
            max_bytes: self.arguments.max_bytes,
        })
    }

    fn stdin(&self) -> StdinSource {
        match &self.arguments.stdin {
            Some(text) => StdinSource::Bytes(text.clone().into_bytes()),
            None => StdinSource::Empty,
        }
    }

    fn request<'r>(&'r self, once: bool, name: &'r str, file: Option<&'r str>) -> Request<'r> {
        let budget = Started::budget(self.cx, self.arguments.max_bytes);
        Request {
            once,
            name,
            code: self.arguments.code.as_deref().unwrap_or_default(),
            file: file.unwrap_or_default(),
            figures: match self.arguments.figures.unwrap_or_default() {
                Figures::Inline => "inline",
                Figures::File => "file",
                Figures::None => "none",
            },
            limit: value_limit(budget),
            args: self.arguments.args.as_deref().unwrap_or_default(),
        }
    }
}

/// Wraps a socket that no other call uses.
fn alone(line: DriverSocket) -> Result<(SharedLine, OwnedMutexGuard<DriverSocket>)> {
    let line = Arc::new(tokio::sync::Mutex::new(line));
    let floor = take_floor(&line)?;
    Ok((line, floor))
}

/// Returns the maximum length of a value and of a traceback.
fn value_limit(budget: usize) -> usize {
    budget / 8
}

/// Returns the arguments that an interpreter is started with. The driver itself follows over the
/// socket, except that of bash, which must be on the first line so that the line numbers of the
/// code are right.
fn boot(way: Way, name: Option<&str>) -> Vec<String> {
    let words: &[&str] = match way {
        Way::Python => &["-c", PYTHON[0].trim_ascii_end()],
        Way::JavaScript => &["-e", JAVASCRIPT[0].trim_ascii_end()],
        _ => &["--noprofile", "--norc", "-c", BASH, name.unwrap_or("bash")],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn driver(way: Way) -> Option<&'static str> {
    match way {
        Way::Python => Some(PYTHON[1]),
        Way::JavaScript => Some(JAVASCRIPT[1]),
        _ => None,
    }
}

fn nameless(code: &str) -> Result<OwnedFd> {
    let failed = |error: std::io::Error| {
        Error::internal("cannot pass the code to the interpreter").source(error)
    };
    let file = memfd_create("code", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    let mut file = File::from(file);
    file.write_all(code.as_bytes()).and_then(|()| file.rewind()).map_err(failed)?;
    Ok(file.into())
}

/// Returns the interpreter with this handle, if it runs this language.
pub fn interpreter(runs: &Runs, id: &str, language: &str) -> Result<Arc<Kept>> {
    let kept = runs.get(id)?;
    if kept.what != language {
        let message = format!("`{}` is not a {language} session ({})", kept.id, kept.what);
        return Err(Error::invalid_arguments(message).hint("`session: \"new\"` starts one."));
    }
    Ok(kept)
}
