//! What the rules say about the execs of a run: written down, asked about, let out.
//!
//! This is the desk at which a run's supervisor asks. A rule that forbids has decided before anything comes here; one
//! that asks goes through the same gate as every other question; what may leave the sandbox is checked again and run in
//! the stead of the process that waits. What a rule allows and what cannot leave runs inside, as if no rule named it, and
//! the record and the result say why.

mod quiet;
mod record;
mod wider;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::policy::{Decision, Verdict};
use futures::future::BoxFuture;
use jail::intercept::exec::wire::{Answer, HeldExec, Ruled, Rules};
use jail::rights::Rights;
use serde_json::{Map, Value, json};

use super::attended::Attended;
use crate::approval::{Granted, Prompt};
use crate::audit::Approvals;
use crate::base::call::{Prepared, digest};
use crate::base::{Error, Kind, Result};
use crate::config::{Escalate, EscalateRisky, Heuristics, Profile};
use crate::redact::own::Own;
use crate::redact::secret::is_sensitive;
use crate::rulebook::leaving::{KEPT_BY_SETTING, NO_ONE_ANSWERED, NO_ONE_TO_ASK};
use crate::rulebook::{Leaving, Rulebook, unasked};
use crate::sandbox::escalate::{self, Exec};
use crate::sandbox::{Desk, Execs, KeptInside, Launcher, Waiting, exec_log, git};
use crate::tools::RunCx;
use quiet::QuietDesk;
use record::fields;
pub use record::{ExecList, audit_network};
use wider::{Stands, WiderShare};

/// Refusals of one run that are written down one by one; its supervisor tells of no more either.
const AUDITED: usize = 10_000;

/// Why a command stays that a human was asked about.
const CHOSEN: &str = "the answer to the question was to run it inside";

/// Variables that every shell changes by itself.
const NOISE: [&str; 4] = ["PWD", "OLDPWD", "SHLVL", "_"];

/// The rules for one run, and who answers for it.
pub struct Policed {
    pub book: Arc<Rulebook>,
    pub rules: Rules,
    leaving: Leaving,
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
        // Rules may have changed since the call was prepared; what they would have closed then is open in this one.
        let is_guarded = !git::is_let_out(&book.table) || git::is_closed(cx.workspace.rights());
        let leaving = match book.leaving(&cx.config, cx.gate.can_ask(cx.caller.abilities())) {
            Leaving::Possible if !is_guarded => {
                Leaving::Prevented("the rules changed as the call began".to_owned())
            }
            leaving => leaving,
        };
        let heuristics = cx.config.policy.heuristics == Heuristics::Prompt;
        let lets_out = leaving == Leaving::Possible;
        let rules = Rules { table: book.table.clone(), heuristics, lets_out, ..Rules::default() };
        Ok(Some(Policed { book, rules, leaving }))
    }

    /// The same rules for a run that nothing leaves.
    #[must_use]
    pub fn kept_in(self) -> Policed {
        let leaving = match self.leaving {
            Leaving::Possible => {
                Leaving::Prevented("commands of this tool do not leave the sandbox".to_owned())
            }
            leaving => leaving,
        };
        Policed { rules: Rules { lets_out: false, ..self.rules }, leaving, ..self }
    }

    /// The desk for a run that belongs to no call: nothing leaves it, and nobody is asked about it.
    pub fn quiet_desk(self, approvals: Approvals, root: &Path) -> Result<Execs> {
        let rules = Rules { lets_out: false, heuristics: false, ..self.rules };
        let desk = QuietDesk::new(approvals);
        Ok(Execs { rules, desk: Arc::new(desk), log: Some(exec_log(root)?), wider: Arc::default() })
    }

    /// Hosts that a rule denies. Of several rules about one host the last that decides counts, as for Codex. What such
    /// rules allow is the operator's config to say, and they cannot be asked about.
    pub fn denied_hosts(&self) -> Vec<String> {
        let mut last = BTreeMap::new();
        for rule in self.book.table.networks.iter().filter(|rule| rule.decision != Decision::Prompt)
        {
            last.insert(rule.host.clone(), rule.decision);
        }
        last.into_iter()
            .filter(|(_, decision)| *decision == Decision::Forbidden)
            .map(|(host, _)| host)
            .collect()
    }

    /// The desk for one run. `env` is what the run starts with, to tell what a command has changed of it; `kept_inside`
    /// takes what the result has to say about commands that did not leave.
    pub fn desk(
        self,
        attended: &Arc<Attended>,
        call: Arc<Prepared>,
        launcher: &Launcher,
        (rights, env): (Rights, Vec<(String, String)>),
        kept_inside: &Arc<KeptInside>,
    ) -> Result<Execs> {
        let cx = attended.cx();
        let log = exec_log(&cx.config.root)?;
        let shared = WiderShare::new(cx.approvals.clone(), &self, &log)?;
        let wider = Arc::clone(&shared.runs);
        let desk = RunDesk {
            began_denied: denies_reading(&cx),
            attended: Arc::clone(attended),
            call,
            launcher: launcher.clone(),
            rights,
            env,
            book: self.book,
            leaving: self.leaving,
            kept_inside: Arc::clone(kept_inside),
            audited: AtomicUsize::new(0),
            own: cx.own(),
            stands: Stands::Inside(shared),
        };
        Ok(Execs { rules: self.rules, desk: Arc::new(desk), log: Some(log), wider })
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
    leaving: Leaving,
    kept_inside: Arc<KeptInside>,
    audited: AtomicUsize,
    own: Own,
    stands: Stands,
}

/// Where a command runs once it may.
enum Place {
    /// Where it is: no rule of the operator's lets it out, for this reason.
    Here(&'static str),
    /// Where it is, for this reason, although a rule lets it out.
    Kept(String),
    Outside(Box<Exec>),
}

impl Desk for RunDesk {
    fn ruled(&self, ruled: Ruled) {
        let how = if ruled.verdict.decision == Decision::Forbidden {
            "refused"
        } else {
            self.stands.name()
        };
        let mut fields = fields(ruled.pid, &ruled.path, &ruled.argv, &ruled.verdict, &self.own);
        fields.extend([("by".to_owned(), "rule".into()), ("ran".to_owned(), how.into())]);
        if ruled.verdict.decision == Decision::Allow
            && let Some(why) = ruled.kept_inside.as_deref().or(self.leaving.obstacle())
        {
            fields.insert("why".to_owned(), why.into());
            self.kept_inside.add(&ruled.verdict.prefix, why);
        }
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
        let (place, reason) = self.plan(&held).await;
        let granted = match reason {
            None => self.attended.cx().gate.by_rule(waiting),
            Some(reason) => match self.ask(&held, &place, &reason, waiting).await {
                Ok(granted) => granted,
                // An `allow` needs no one's yes to run inside: that is what happens without the rule.
                Err(error) => {
                    if held.verdict.decision == Decision::Allow
                        && let Some(why) = unanswered(&error)
                    {
                        return self.run_inside(&held, "rule", Some(why));
                    }
                    self.record(&held, "approval", "refused", None);
                    let (why, hint) = (error.detail(), error.hint_text().unwrap_or_default());
                    let line =
                        format!("ringfence: {}: not allowed: {why}. {hint}", held.program.path);
                    return Answer::Refuse(format!("{}\n", line.trim_end()), 1);
                }
            },
        };
        let by = granted.grant().by;
        if granted.grant().inside {
            return self.run_inside(&held, by, Some(CHOSEN));
        }
        let exec = match place {
            Place::Here(_) => return self.run_inside(&held, by, None),
            Place::Kept(why) => return self.run_inside(&held, by, Some(&why)),
            Place::Outside(exec) => exec,
        };
        let cx = self.attended.cx();
        if !self.record(&held, by, cx.config.policy.escalate.name(), None) {
            return unrecorded(&held);
        }
        let ran = match self.somewhere(&cx) {
            Ok(place) => escalate::run(granted.map(|waiting| (*exec, waiting)), place).await,
            Err(error) => Err(error.detail()),
        };
        match ran {
            Ok(answer) => answer,
            Err(why) if held.verdict.decision == Decision::Allow => {
                self.run_inside(&held, by, Some(&format!("it could not be started outside: {why}")))
            }
            // A human was asked about outside, and about nothing else.
            Err(why) => escalate::refusal(&held.program.path, &why),
        }
    }

    /// Lets it begin where it is; `why` says why it did not leave although a rule lets it.
    fn run_inside(&self, held: &HeldExec, by: &str, why: Option<&str>) -> Answer {
        let why = why.map(|why| {
            match escalate::is_git(&held.program.path) && self.is_repository_closed() {
                true => format!("{why}; `.git` is read-only here while a rule lets git out"),
                false => why.to_owned(),
            }
        });
        if !self.record(held, by, self.stands.name(), why.as_deref()) {
            return unrecorded(held);
        }
        if let Some(why) = why {
            self.kept_inside.add(&held.verdict.prefix, &why);
        }
        Answer::Run
    }

    fn is_repository_closed(&self) -> bool {
        let cx = self.attended.cx();
        // Without mounts nothing inside the workspace can be closed.
        cx.config.sandbox.profile != Profile::Contained && git::is_closed(cx.workspace.rights())
    }

    /// Where it would run, and why someone is asked first, if anyone is. A rule is enough where it names every word of the
    /// command, or where the program is harmless with any.
    async fn plan(&self, held: &HeldExec) -> (Place, Option<String>) {
        let place = self.place(held).await;
        if held.verdict.decision != Decision::Allow {
            let reason = match &held.verdict.justification {
                Some(why) => format!("A rule asks for it: {why}"),
                None => "A rule asks for it.".to_owned(),
            };
            return (place, Some(reason));
        }
        let asked = match place {
            Place::Outside(_) => escalate::reason_to_ask(held, unasked::reason_to_ask),
            Place::Here(_) | Place::Kept(_) => None,
        };
        match (asked, self.attended.cx().config.policy.escalate_risky) {
            (None, _) | (Some(_), EscalateRisky::Outside) => (place, None),
            (Some(_), EscalateRisky::Inside) => (Place::Kept(KEPT_BY_SETTING.to_owned()), None),
            (Some(reason), EscalateRisky::Ask) => (
                place,
                Some(format!(
                    "It would run outside the sandbox with more than its rule says: {reason}."
                )),
            ),
        }
    }

    /// Where it would run, found out before anybody is asked.
    async fn place(&self, held: &HeldExec) -> Place {
        match &self.leaving {
            Leaving::Off => return Place::Here("nothing leaves the sandbox"),
            _ if !held.itself => {
                return Place::Here("it is not the program that the rule's name stands for");
            }
            _ if held.verdict.origin.file == ::policy::HEURISTICS => {
                return Place::Here("no rule lets it out");
            }
            Leaving::Prevented(why) => return Place::Kept(why.clone()),
            Leaving::Possible => {}
        }
        if self.is_denied_reading() {
            return Place::Kept(
                "the client's sandbox denies reading, which nothing outside would keep".to_owned(),
            );
        }
        let cx = self.attended.cx();
        if cx.config.policy.escalate == Escalate::Outside
            && let Err(error) = escalate::account(&cx.config)
        {
            return Place::Kept(error.detail());
        }
        let is_repository_open = cx.policy.has_open_repository(cx.workspace.path());
        let (held, rights, book) = (held.clone(), self.rights.clone(), Arc::clone(&self.book));
        let check = move || Exec::check(&held, &rights, &book.table, is_repository_open);
        match tokio::task::spawn_blocking(check).await {
            Ok(Ok(exec)) => Place::Outside(Box::new(exec)),
            Ok(Err(why)) => Place::Kept(why),
            Err(error) => Place::Kept(format!("it could not be checked: {error}")),
        }
    }

    /// By the sandbox that it was started under, or by that of whoever looks now.
    fn is_denied_reading(&self) -> bool {
        self.began_denied || denies_reading(&self.attended.cx())
    }

    async fn ask(
        &self,
        held: &HeldExec,
        place: &Place,
        reason: &str,
        waiting: Waiting,
    ) -> Result<Granted<Waiting>> {
        let verdict = &held.verdict;
        let cx = self.attended.cx();
        // Long commands are shown whole below.
        let words = quoted(&self.own.words(&held.argv));
        let is_cut = words.chars().nth(120).is_some();
        let subject: String = words.chars().take(120).chain(is_cut.then_some('…')).collect();
        let prompt =
            Prompt::exec(&self.call, subject, reason, self.shown(held, place), &cx.session);
        let prompt = Prompt { offers_inside: matches!(place, Place::Outside(_)), ..prompt };
        // Two scripts of one interpreter may have the same words, and the same words mean another thing elsewhere; and
        // what may run inside may not therefore leave.
        let files = [Some(&held.program), held.script.as_ref(), Some(&held.cwd)];
        let files = files.map(|file| file.map(|file| (file.device, file.inode)));
        let kept: Vec<_> = held
            .env
            .iter()
            .filter(|(name, _)| cx.config.policy.escalate_env.contains(name))
            .collect();
        let argv = digest(&json!([files, held.argv, kept, matches!(place, Place::Outside(_))]));
        let rule = format!("exec {}:{}", verdict.origin.file, verdict.origin.line);
        let clocks = self.attended.clocks();
        let pauses: Vec<_> = clocks.iter().map(|clock| clock.pause()).collect();
        let granted = cx.confirm_for_session(prompt, (rule, argv), waiting).await;
        drop(pauses);
        granted
    }

    /// Everything that decides, for a human.
    fn shown(&self, held: &HeldExec, place: &Place) -> Value {
        let mut shown = Map::new();
        let mut add = |name: &str, value: String| drop(shown.insert(name.to_owned(), value.into()));
        add("program", held.program.path.clone());
        if let Some(script) = &held.script {
            add("script", script.path.clone());
        }
        add("command", quoted(&self.own.words(&held.argv)));
        add("in", held.cwd.path.clone());
        let path = match place {
            Place::Here(_) | Place::Kept(_) => {
                held.env.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone())
            }
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
                Place::Here(_) if matches!(self.stands, Stands::Wider) => {
                    "in the wider sandbox".to_owned()
                }
                Place::Here(why) => format!("in the sandbox ({why})"),
                Place::Kept(why) => format!("in the sandbox ({why})"),
                Place::Outside(_) => match self.attended.cx().config.policy.escalate {
                    Escalate::Wider => "in the wider sandbox".to_owned(),
                    _ => "outside the sandbox, with your rights and without the environment below"
                        .to_owned(),
                },
            },
        );
        Value::Object(shown)
    }

    /// `PATH` as the command gets it outside.
    fn search_path(&self, exec: &Exec) -> Option<String> {
        escalate::search_path(exec, &self.attended.cx().config)
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
        let taken = self
            .env
            .iter()
            .filter(|(name, _)| !noise(name) && !env.iter().any(|(other, _)| other == name));
        let added = added.map(|(name, value)| show(name, value));
        added.chain(taken.map(|(name, _)| format!("-{name}"))).collect()
    }

    /// Written before it happens. False when it cannot be: then it does not.
    fn record(&self, held: &HeldExec, by: &str, ran: &str, why: Option<&str>) -> bool {
        if ran == "refused" && self.audited.fetch_add(1, Ordering::Relaxed) >= AUDITED {
            return true;
        }
        let mut fields = fields(held.pid, &held.program.path, &held.argv, &held.verdict, &self.own);
        if let Some(script) = &held.script {
            fields.insert("script".to_owned(), script.path.clone().into());
        }
        fields.extend([("by".to_owned(), by.into()), ("ran".to_owned(), ran.into())]);
        if let Some(why) = why {
            fields.insert("why".to_owned(), why.into());
        }
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

fn unrecorded(held: &HeldExec) -> Answer {
    let line = format!("ringfence: {}: refused: it could not be recorded\n", held.program.path);
    Answer::Refuse(line, 126)
}

/// Why no one has answered, where that is what the error means: then no one has said no either.
fn unanswered(error: &Error) -> Option<&'static str> {
    match (error.kind(), error.reason_name()) {
        (Kind::ApprovalExpired, _) => Some(NO_ONE_ANSWERED),
        (Kind::TooLarge, _) => {
            Some("its rule does not name the whole command, and it is too long for a question")
        }
        (Kind::ResourceExhausted, _) => Some(
            "its rule does not name the whole command, and too many questions wait in this session already",
        ),
        (_, Some("no_asker" | "no_human")) => Some(NO_ONE_TO_ASK),
        _ => None,
    }
}

/// For a client, which need not know where the operator keeps rules.
fn origin(verdict: &Verdict) -> String {
    let file = Path::new(&verdict.origin.file);
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    format!("{name}:{}", verdict.origin.line)
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
