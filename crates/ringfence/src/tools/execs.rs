//! What the rules say about the execs of a run: written down, asked about, let out.
//!
//! This is the desk at which a run's supervisor asks. A rule that forbids has decided before anything comes here; one
//! that asks goes through the same gate as every other question; what may leave the sandbox is checked again and run in
//! the stead of the process that waits.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::policy::{Decision, Verdict};
use futures::future::BoxFuture;
use jail::intercept::exec::wire::{Answer, Held, Ruled, Rules};
use jail::rights::Rights;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::RunCx;
use super::attended::Attended;
use super::own::Own;
use crate::approval::{Granted, Prompt};
use crate::audit::Approvals;
use crate::base::call::{Prepared, digest};
use crate::base::secret::is_sensitive;
use crate::base::{Error, Result};
use crate::config::{Escalate, Heuristics, Profile};
use crate::policy::{Rulebook, lint};
use crate::sandbox::escalate::{self, Exec, Where};
use crate::sandbox::{Desk, Execs, Launcher, Waiting, exec_log, git};

/// Refusals of one run that are written down one by one; its supervisor tells of no more either.
const AUDITED: usize = 10_000;

/// Bytes of a command's words in one record; of what does not fit there is a hash of all.
const COMMAND: usize = 4096;

/// Variables that every shell changes by itself.
const NOISE: [&str; 4] = ["PWD", "OLDPWD", "SHLVL", "_"];

/// The rules for one run, and who answers for it.
pub struct Policed {
    pub book: Arc<Rulebook>,
    pub rules: Rules,
    lets_out: bool,
}

impl Policed {
    /// The rules as they are now. A run keeps what it started with.
    pub async fn of(cx: &RunCx) -> Result<Option<Policed>> {
        if cx.config.sandbox.profile == Profile::None {
            return Ok(None);
        }
        let book = cx.policy.current(cx.workspace.path()).await;
        if !cx.config.policy.intercept || !jail::intercept::exec::SUPPORTED {
            // Rules that nobody looks after would be worse than none.
            return match book.table.prefixes.is_empty() && book.faults.is_empty() {
                true => Ok(None),
                false => Err(Error::permission_denied("rules_unwatched", "there are rules, and execs are not watched")
                    .hint("Set `intercept = true` under [policy], or take the rules away; `ringfence doctor` says what this host can do.")),
            };
        }
        let escalate = cx.config.policy.escalate;
        // Rules may have changed since the call was prepared; what they would have closed then is open in this one.
        let is_guarded = !git::is_let_out(&book.table) || git::is_closed(cx.workspace.rights());
        let lets_out = escalate != Escalate::Off && book.faults.is_empty() && is_guarded;
        let heuristics = cx.config.policy.heuristics == Heuristics::Prompt;
        let rules = Rules { table: book.table.clone(), heuristics, lets_out, ..Rules::default() };
        Ok(Some(Policed { book, rules, lets_out }))
    }

    /// The same rules for a run that nothing leaves.
    #[must_use]
    pub fn kept_in(self) -> Policed {
        Policed { rules: Rules { lets_out: false, ..self.rules }, lets_out: false, ..self }
    }

    /// The desk for a run that belongs to no call: nothing leaves it, and nobody is asked about it.
    pub fn quiet_desk(self, approvals: Approvals, root: &Path) -> Result<Execs> {
        let rules = Rules { lets_out: false, heuristics: false, ..self.rules };
        let desk = QuietDesk { approvals, audited: AtomicUsize::new(0) };
        Ok(Execs { rules, desk: Arc::new(desk), log: Some(exec_log(root)?) })
    }

    /// Hosts that a rule denies. Of several rules about one host the last that decides counts, as for Codex. What such
    /// rules allow is the operator's config to say, and they cannot be asked about.
    pub fn denied_hosts(&self) -> Vec<String> {
        let mut last = BTreeMap::new();
        for rule in self.book.table.networks.iter().filter(|rule| rule.decision != Decision::Prompt) {
            last.insert(rule.host.clone(), rule.decision);
        }
        last.into_iter().filter(|(_, decision)| *decision == Decision::Forbidden).map(|(host, _)| host).collect()
    }

    /// The desk for one run. `env` is what the run starts with, to tell what a command has changed of it.
    pub fn desk(
        self,
        attended: &Arc<Attended>,
        call: Arc<Prepared>,
        launcher: &Launcher,
        rights: Rights,
        env: Vec<(String, String)>,
    ) -> Result<Execs> {
        let log = exec_log(&attended.cx().config.root)?;
        let desk = RunDesk {
            began_denied: denies_reading(&attended.cx()),
            attended: Arc::clone(attended),
            call,
            launcher: launcher.clone(),
            rights,
            env,
            book: self.book,
            lets_out: self.lets_out,
            audited: AtomicUsize::new(0),
            own: Own::of(&attended.cx()),
        };
        Ok(Execs { rules: self.rules, desk: Arc::new(desk), log: Some(log) })
    }
}

struct QuietDesk {
    approvals: Approvals,
    audited: AtomicUsize,
}

impl QuietDesk {
    fn record(&self, pid: i32, path: &str, argv: &[String], verdict: &Verdict, ran: &str) {
        let mut fields = fields(pid, path, argv, verdict, &Own::default());
        fields.extend([("by".to_owned(), "rule".into()), ("ran".to_owned(), ran.into())]);
        if self.audited.fetch_add(1, Ordering::Relaxed) < AUDITED
            && let Err(error) = self.approvals.exec(fields)
        {
            tracing::error!("a decision about an exec could not be recorded: {}", error.log_line());
        }
    }
}

impl Desk for QuietDesk {
    fn ruled(&self, ruled: Ruled) {
        let ran = if ruled.verdict.decision == Decision::Forbidden { "refused" } else { "inside" };
        self.record(ruled.pid, &ruled.path, &ruled.argv, &ruled.verdict, ran);
    }

    fn held(self: Arc<Self>, exec: Waiting) -> BoxFuture<'static, Answer> {
        let held = &exec.held;
        let allowed = held.verdict.decision == Decision::Allow;
        let ran = if allowed { "inside" } else { "refused" };
        self.record(held.pid, &held.program.path, &held.argv, &held.verdict, ran);
        let answer = match allowed {
            true => Answer::Run,
            false => {
                Answer::Refuse(format!("ringfence: {}: a rule asks, and nobody can be asked\n", held.program.path), 1)
            }
        };
        Box::pin(std::future::ready(answer))
    }
}

struct RunDesk {
    attended: Arc<Attended>,
    began_denied: bool,
    call: Arc<Prepared>,
    launcher: Launcher,
    rights: Rights,
    env: Vec<(String, String)>,
    book: Arc<Rulebook>,
    lets_out: bool,
    audited: AtomicUsize,
    own: Own,
}

/// Where a command runs once it may.
enum Place {
    /// Where it is, for this reason.
    Inside(&'static str),
    Outside(Box<Exec>),
}

impl Desk for RunDesk {
    fn ruled(&self, ruled: Ruled) {
        let how = if ruled.verdict.decision == Decision::Forbidden { "refused" } else { "inside" };
        let mut fields = fields(ruled.pid, &ruled.path, &ruled.argv, &ruled.verdict, &self.own);
        fields.extend([("by".to_owned(), "rule".into()), ("ran".to_owned(), how.into())]);
        // What was held is always written: nothing may leave because there was much to write before.
        if self.audited.fetch_add(1, Ordering::Relaxed) < AUDITED {
            self.write(fields);
        }
    }

    fn held(self: Arc<Self>, exec: Waiting) -> BoxFuture<'static, Answer> {
        Box::pin(async move { self.answer(exec).await })
    }
}

impl RunDesk {
    async fn answer(&self, waiting: Waiting) -> Answer {
        let held = waiting.held.clone();
        let place = match self.place(&held) {
            Ok(place) => place,
            Err(why) => {
                self.record(&held, "rule", "refused");
                return escalate::refusal(&held.program.path, &why);
            }
        };
        let granted = match self.grant(&held, &place, waiting).await {
            Ok(granted) => granted,
            Err(error) => {
                self.record(&held, "approval", "refused");
                let (why, hint) = (error.detail(), error.hint_text().unwrap_or_default());
                let line = format!("ringfence: {}: not allowed: {why}. {hint}", held.program.path);
                return Answer::Refuse(format!("{}\n", line.trim_end()), 1);
            }
        };
        let by = granted.grant().by;
        match place {
            Place::Inside(_) => match self.record(&held, by, "inside") {
                true => Answer::Run,
                false => unrecorded(&held),
            },
            Place::Outside(exec) => {
                let cx = self.attended.cx();
                let how = cx.config.policy.escalate.name();
                if !self.record(&held, by, how) {
                    return unrecorded(&held);
                }
                escalate::run(granted.map(|waiting| (*exec, waiting)), self.somewhere(&cx)).await
            }
        }
    }

    /// Where it would run, found out before anybody is asked.
    fn place(&self, held: &Held) -> std::result::Result<Place, String> {
        if !self.lets_out {
            return Ok(Place::Inside("nothing leaves the sandbox"));
        }
        if !held.itself {
            return Ok(Place::Inside("it is not the program that the rule's name stands for"));
        }
        if held.verdict.origin.file == ::policy::HEURISTICS {
            return Ok(Place::Inside("no rule lets it out"));
        }
        if self.is_denied_reading() {
            return Ok(Place::Inside("the client's sandbox denies reading, which nothing outside would keep"));
        }
        let cx = self.attended.cx();
        if cx.config.policy.escalate == Escalate::Outside {
            escalate::account(&cx.config).map_err(|error| error.detail())?;
        }
        let exec = Exec::check(held, &self.rights, &self.book.table)?;
        Ok(Place::Outside(Box::new(exec)))
    }

    /// By the sandbox that it was started under, or by that of whoever looks now.
    fn is_denied_reading(&self) -> bool {
        self.began_denied || denies_reading(&self.attended.cx())
    }

    fn somewhere<'a>(&'a self, cx: &'a RunCx) -> Where<'a> {
        let (config, launcher) = (&*cx.config, &self.launcher);
        match (config.policy.escalate, &config.policy.wider) {
            (Escalate::Wider, Some(wider)) => {
                Where::Wider { session: &cx.session, config, wider, launcher, table: &self.book.table }
            }
            _ => Where::Outside { launcher, config },
        }
    }

    /// A rule's word is enough where it names all that will happen. Programs that run what their arguments say are
    /// allowed with the rule's words alone; with more, a human is asked.
    async fn grant(&self, held: &Held, place: &Place, waiting: Waiting) -> Result<Granted<Waiting>> {
        let verdict = &held.verdict;
        let risk = match place {
            Place::Outside(_) => escalate::unsaid(held, lint::risk),
            Place::Inside(_) => None,
        };
        let cx = self.attended.cx();
        if verdict.decision == Decision::Allow && risk.is_none() {
            return Ok(cx.gate.by_rule(waiting));
        }
        let why = match (risk, &verdict.justification) {
            (Some(risk), _) => format!("It would run outside the sandbox with more than its rule says: {risk}."),
            (None, Some(why)) => format!("A rule asks for it: {why}"),
            (None, None) => "A rule asks for it.".to_owned(),
        };
        // Long commands are shown whole below.
        let words = quoted(&self.own.words(&held.argv));
        let is_cut = words.chars().nth(120).is_some();
        let subject: String = words.chars().take(120).chain(is_cut.then_some('…')).collect();
        let prompt = Prompt::exec(&self.call, subject, &why, self.shown(held, place), &cx.session);
        // Two scripts of one interpreter may have the same words, and the same words mean another thing elsewhere; and
        // what may run inside may not therefore leave.
        let files = [Some(&held.program), held.script.as_ref(), Some(&held.cwd)];
        let files = files.map(|file| file.map(|file| (file.device, file.inode)));
        let kept: Vec<_> = held.env.iter().filter(|(name, _)| cx.config.policy.escalate_env.contains(name)).collect();
        let argv = digest(&json!([files, held.argv, kept, matches!(place, Place::Outside(_))]));
        let rule = format!("exec {}:{}", verdict.origin.file, verdict.origin.line);
        let clocks = self.attended.clocks();
        let pauses: Vec<_> = clocks.iter().map(|clock| clock.pause()).collect();
        let granted = cx.confirm_for_session(prompt, (rule, argv), waiting).await;
        drop(pauses);
        granted
    }

    /// Everything that decides, for a human.
    fn shown(&self, held: &Held, place: &Place) -> Value {
        let mut shown = Map::new();
        let mut add = |name: &str, value: String| drop(shown.insert(name.to_owned(), value.into()));
        add("program", held.program.path.clone());
        if let Some(script) = &held.script {
            add("script", script.path.clone());
        }
        add("command", quoted(&self.own.words(&held.argv)));
        add("in", held.cwd.path.clone());
        let path = match place {
            Place::Inside(_) => held.env.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone()),
            Place::Outside(exec) => self.search_path(exec),
        };
        add("PATH", path.unwrap_or_default());
        let changed = self.changed(&held.env);
        if !changed.is_empty() {
            add("environment", changed.join(" "));
        }
        add("called by", held.parents.join(" < "));
        add("rule", origin(&held.verdict));
        add(
            "runs",
            match place {
                Place::Inside(why) => format!("in the sandbox ({why})"),
                Place::Outside(_) => match self.attended.cx().config.policy.escalate {
                    Escalate::Wider => "in the wider sandbox".to_owned(),
                    _ => "outside the sandbox, with your rights and without the environment below".to_owned(),
                },
            },
        );
        Value::Object(shown)
    }

    /// `PATH` as the command gets it outside.
    fn search_path(&self, exec: &Exec) -> Option<String> {
        let cx = self.attended.cx();
        escalate::search_path(exec, &self.somewhere(&cx))
    }

    /// What a command has changed of the environment that the run began with.
    fn changed(&self, env: &[(String, String)]) -> Vec<String> {
        let noise = |name: &str| NOISE.contains(&name);
        let show = |name: &str, value: &str| match is_sensitive(name) {
            true => format!("+{name}=[redacted]"),
            // A password may also stand in an address.
            false => format!("+{}", self.own.words(&[format!("{name}={value}")]).join(" ")),
        };
        let added = env.iter().filter(|pair| !noise(&pair.0) && !self.env.contains(pair));
        let taken = self.env.iter().filter(|(name, _)| !noise(name) && !env.iter().any(|(other, _)| other == name));
        let added = added.map(|(name, value)| show(name, value));
        added.chain(taken.map(|(name, _)| format!("-{name}"))).collect()
    }

    /// Written before it happens. False when it cannot be: then it does not.
    fn record(&self, held: &Held, by: &str, ran: &str) -> bool {
        if ran == "refused" && self.audited.fetch_add(1, Ordering::Relaxed) >= AUDITED {
            return true;
        }
        let mut fields = fields(held.pid, &held.program.path, &held.argv, &held.verdict, &self.own);
        if let Some(script) = &held.script {
            fields.insert("script".to_owned(), script.path.clone().into());
        }
        fields.extend([("by".to_owned(), by.into()), ("ran".to_owned(), ran.into())]);
        self.write(fields)
    }

    fn write(&self, fields: Map<String, Value>) -> bool {
        let cx = self.attended.cx();
        let mut fields = fields;
        if cx.trace_id != self.call.trace_id {
            // Another call looks at the run than the one that started it.
            fields.insert("started_by".to_owned(), self.call.trace_id.as_str().into());
        }
        let written = cx.approvals.exec(fields);
        if let Err(error) = &written {
            tracing::error!("a decision about an exec could not be recorded: {}", error.log_line());
        }
        written.is_ok()
    }
}

fn denies_reading(cx: &RunCx) -> bool {
    let (before, now) = (cx.session.workspace.rights(), cx.workspace.rights());
    // What has become private since is hidden by us, and outside nobody is sent to read it.
    let is_ours = |path| before.hidden.contains(path) || cx.config.private.contains(path);
    !now.hidden.iter().all(is_ours) || !now.veils.is_empty()
}

fn unrecorded(held: &Held) -> Answer {
    let line = format!("ringfence: {}: refused: it could not be recorded\n", held.program.path);
    Answer::Refuse(line, 126)
}

/// For a client, which need not know where the operator keeps rules.
fn origin(verdict: &Verdict) -> String {
    let file = Path::new(&verdict.origin.file);
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    format!("{name}:{}", verdict.origin.line)
}

fn fields(pid: i32, path: &str, argv: &[String], verdict: &Verdict, own: &Own) -> Map<String, Value> {
    let rule = json!({"file": verdict.origin.file, "line": verdict.origin.line, "prefix": verdict.prefix});
    let mut shown = own.words(argv);
    let mut length = 0;
    let fitting = shown.iter().take_while(|word| {
        length += word.len();
        length <= COMMAND
    });
    let fitting = fitting.count();
    shown.truncate(fitting);
    let mut fields = Map::new();
    let mut add = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    add("pid", pid.into());
    add("path", path.into());
    if shown.len() < argv.len() {
        add("command_hash", digest(&json!(argv)).into());
    }
    add("command", shown.into());
    add("rule", rule);
    add("verdict", json!(verdict.decision));
    add("recognised", json!(verdict.seen));
    fields
}

/// As one would type it.
fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,@%+".contains(c);
    let quote = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// What is put on record about the execs that no rule named: their number, and a digest of the list, so that a list kept
/// elsewhere can be checked against it. The list itself goes into the log where the operator wants that.
pub fn sum(approvals: &Approvals, audit_execs: Option<&Own>, log: File, count: u64) -> Value {
    let mut hash = blake3::Hasher::new();
    let mut listed = 0_u64;
    let mut lines = BufReader::new(log);
    let mut line = Vec::new();
    let whole = lines.rewind().is_ok();
    while whole && matches!(lines.read_until(b'\n', &mut line), Ok(1..)) {
        hash.update(&line);
        listed += 1;
        if let (Some(own), Ok(Seen { pid, path, argv })) = (audit_execs, serde_json::from_slice(&line)) {
            let fields =
                json!({"pid": pid, "path": path, "command": own.words(&argv), "by": "nobody", "ran": "inside"});
            if let Value::Object(fields) = fields
                && let Err(error) = approvals.exec(fields)
            {
                tracing::error!("an exec could not be recorded: {}", error.log_line());
            }
        }
        line.clear();
    }
    let mut sum = json!({"count": count, "digest": format!("blake3:{}", hash.finalize().to_hex())});
    if listed < count {
        // The disk was full, or there were more than anybody reads.
        sum["unlisted"] = (count - listed).into();
    }
    sum
}

/// One exec that no rule names.
#[derive(Deserialize)]
struct Seen {
    pid: i32,
    path: String,
    argv: Vec<String>,
}
