//! State machine for the end of a run: how a run ends, and what is reported for each way it can
//! end.
//!
//! It holds no process and no socket. The supervisor feeds it events and performs the steps it
//! returns, so that the table below is the complete description of the end of a run.
//!
//! | state | event | next state | performed and reported |
//! |---|---|---|---|
//! | any before `Leaving` | the main process ended, nothing else lives | `Leaving` | final report |
//! | `Running` | the main process ended, others live | `Ending` | interim report; SIGTERM to all |
//! | `Ending`, `Killing` | the main process ended, others live | unchanged | interim report |
//! | `Running` | the server asks for the end or is gone | `Ending` | that signal or SIGTERM to all |
//! | `Ending`, `Killing` | the server asks for the end or is gone | unchanged | – |
//! | any before `Leaving` | limits exceeded | `Killing` | SIGKILL to all |
//! | `Ending` | the grace period is over | `Killing` | SIGKILL to all |
//! | `Killing` | the round is over | `Killing`, twice as long | SIGKILL to all |
//! | any before `Leaving` | the last process is gone | `Over` | final report |
//! | any before `Leaving` | the run cannot be observed | `Over` | SIGKILL to all; final report |
//! | any before `Leaving` | a signal for the main process | unchanged | that signal |
//! | `Leaving` | the last process is gone | `Over` | – |
//! | `Leaving` | the round is over | `Leaving`, twice as long | SIGKILL to all |
//!
//! Everything else changes nothing. `Leaving` is the time between the final report and the end of
//! the run's init, which no one waits for.
//!
//! The init of a pid namespace reports how the main process ended. If the init was killed, by us or
//! by others, the final report says what the kernel then does to everything inside: SIGKILL.

use std::time::{Duration, Instant};

use super::LeftBehind;

/// Time between two rounds of killing: short at first, longer while something cannot be killed.
const FIRST_ROUND: Duration = Duration::from_millis(5);
const LONGEST_ROUND: Duration = Duration::from_millis(500);

/// Event in the life of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunEvent {
    /// The main process has ended.
    MainEnded { code: Option<i32>, signal: Option<i32>, left: LeftBehind },
    /// No process of the run is left.
    TreeEmpty,
    /// The server asks for the end with this signal, or is gone.
    Stop(i32),
    /// The run exceeds its limits.
    LimitsExceeded,
    /// The server has a signal for the main process.
    Signal(i32),
    /// The time that the state waits for is over.
    Timeout,
    /// The supervisor can no longer observe the run.
    Unobservable,
}

/// Step that the supervisor performs next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LifecycleStep {
    /// Ask every process to end.
    Terminate(i32),
    /// Kill every process.
    Kill,
    /// Pass a signal on to the main process.
    Signal(i32),
    /// Report how the main process ended and what was seen so far.
    ReportInterim(MainExit),
    /// Report for the last time.
    ReportFinal(MainExit),
}

/// How the main process ended, and what it left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MainExit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub left: LeftBehind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LifecycleState {
    Running,
    Ending { until: Instant },
    Killing { round: Duration },
    Leaving { round: Duration },
    Over,
}

/// State of one run on its way to the end.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    state: LifecycleState,
    grace: Duration,
    /// How the main process ended, once that is known.
    main_exit: Option<MainExit>,
}

impl Lifecycle {
    pub(crate) fn new(grace: Duration) -> Lifecycle {
        Lifecycle { state: LifecycleState::Running, grace, main_exit: None }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state == LifecycleState::Over
    }

    /// Returns how long to wait for the next event before it is [`RunEvent::Timeout`].
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Duration> {
        match self.state {
            LifecycleState::Running | LifecycleState::Over => None,
            LifecycleState::Ending { until } => Some(until.saturating_duration_since(now)),
            LifecycleState::Killing { round } | LifecycleState::Leaving { round } => Some(round),
        }
    }

    /// Handles one event according to the table. Returns the steps to perform.
    pub(crate) fn handle_event(&mut self, event: RunEvent, now: Instant) -> Vec<LifecycleStep> {
        match self.state {
            LifecycleState::Over => Vec::new(),
            LifecycleState::Leaving { round } => match event {
                RunEvent::TreeEmpty | RunEvent::Unobservable => {
                    self.enter_state(LifecycleState::Over, Vec::new())
                }
                RunEvent::Timeout => self.enter_state(
                    LifecycleState::Leaving { round: double_round(round) },
                    vec![LifecycleStep::Kill],
                ),
                _ => Vec::new(),
            },
            state => self.handle_unreported(state, event, now),
        }
    }

    /// Handles the rows of the table before the final report.
    fn handle_unreported(
        &mut self,
        state: LifecycleState,
        event: RunEvent,
        now: Instant,
    ) -> Vec<LifecycleStep> {
        let is_running = state == LifecycleState::Running;
        let ending = LifecycleState::Ending { until: now + self.grace };
        match event {
            RunEvent::MainEnded { code, signal, left } => {
                let is_alone = left == LeftBehind::Nothing;
                let main_exit = MainExit { code, signal, left };
                self.main_exit = Some(main_exit.clone());
                match (is_alone, is_running) {
                    (true, _) => self.enter_state(
                        LifecycleState::Leaving { round: LONGEST_ROUND },
                        vec![LifecycleStep::ReportFinal(main_exit)],
                    ),
                    (false, true) => self.enter_state(
                        ending,
                        vec![
                            LifecycleStep::ReportInterim(main_exit),
                            LifecycleStep::Terminate(libc::SIGTERM),
                        ],
                    ),
                    (false, false) => vec![LifecycleStep::ReportInterim(main_exit)],
                }
            }
            RunEvent::Stop(signal) if is_running => {
                self.enter_state(ending, vec![LifecycleStep::Terminate(signal)])
            }
            RunEvent::Stop(_) => Vec::new(),
            RunEvent::Signal(signal) => vec![LifecycleStep::Signal(signal)],
            RunEvent::LimitsExceeded => self.enter_state(
                LifecycleState::Killing { round: FIRST_ROUND },
                vec![LifecycleStep::Kill],
            ),
            RunEvent::Timeout => {
                let round = if let LifecycleState::Killing { round } = state {
                    double_round(round)
                } else {
                    FIRST_ROUND
                };
                self.enter_state(LifecycleState::Killing { round }, vec![LifecycleStep::Kill])
            }
            RunEvent::TreeEmpty => {
                let main_exit = self.known_exit();
                self.enter_state(LifecycleState::Over, vec![LifecycleStep::ReportFinal(main_exit)])
            }
            RunEvent::Unobservable => {
                let main_exit = self.known_exit();
                self.enter_state(
                    LifecycleState::Over,
                    vec![LifecycleStep::Kill, LifecycleStep::ReportFinal(main_exit)],
                )
            }
        }
    }

    fn enter_state(
        &mut self,
        state: LifecycleState,
        steps: Vec<LifecycleStep>,
    ) -> Vec<LifecycleStep> {
        self.state = state;
        steps
    }

    /// Returns how the main process ended. When the init died first, no one could report that: the
    /// kernel has killed the main process with it.
    fn known_exit(&self) -> MainExit {
        let killed =
            MainExit { code: None, signal: Some(libc::SIGKILL), left: LeftBehind::Nothing };
        self.main_exit.clone().unwrap_or(killed)
    }
}

fn double_round(round: Duration) -> Duration {
    (round * 2).min(LONGEST_ROUND)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(2);

    fn ended(left: LeftBehind) -> RunEvent {
        RunEvent::MainEnded { code: Some(3), signal: None, left }
    }

    fn others() -> LeftBehind {
        LeftBehind::Processes(1, vec!["sleep".to_owned()])
    }

    /// Runs the events through a new machine. Returns the steps, and whether the run is over then.
    fn run(events: impl IntoIterator<Item = RunEvent>) -> (Vec<LifecycleStep>, bool) {
        let (mut lifecycle, now) = (Lifecycle::new(GRACE), Instant::now());
        let steps =
            events.into_iter().flat_map(|event| lifecycle.handle_event(event, now)).collect();
        (steps, lifecycle.is_over())
    }

    fn exit(left: LeftBehind) -> MainExit {
        MainExit { code: Some(3), signal: None, left }
    }

    fn killed() -> MainExit {
        MainExit { code: None, signal: Some(9), left: LeftBehind::Nothing }
    }

    #[test]
    fn a_main_process_that_ends_alone_is_reported_once_and_at_once() {
        let (steps, over) = run([
            ended(LeftBehind::Nothing),
            RunEvent::Stop(15),
            RunEvent::Signal(2),
            RunEvent::LimitsExceeded,
        ]);
        assert_eq!(
            (steps, over),
            (vec![LifecycleStep::ReportFinal(exit(LeftBehind::Nothing))], false)
        );
        let (steps, over) = run([
            ended(LeftBehind::Nothing),
            RunEvent::Stop(15),
            RunEvent::TreeEmpty,
            RunEvent::TreeEmpty,
        ]);
        assert_eq!(
            (steps, over),
            (vec![LifecycleStep::ReportFinal(exit(LeftBehind::Nothing))], true)
        );
        let (steps, _) = run([ended(LeftBehind::Nothing), RunEvent::Timeout]);
        assert_eq!(
            steps,
            [LifecycleStep::ReportFinal(exit(LeftBehind::Nothing)), LifecycleStep::Kill]
        );
    }

    #[test]
    fn what_is_left_behind_is_asked_to_end_and_reported_again_at_the_end() {
        let (steps, over) = run([ended(others()), RunEvent::Timeout, RunEvent::TreeEmpty]);
        let expected = [
            LifecycleStep::ReportInterim(exit(others())),
            LifecycleStep::Terminate(15),
            LifecycleStep::Kill,
            LifecycleStep::ReportFinal(exit(others())),
        ];
        assert_eq!((&steps[..], over), (&expected[..], true));
    }

    #[test]
    fn a_run_that_ignores_the_request_is_killed_and_reported() {
        let (steps, over) = run([
            RunEvent::Stop(2),
            RunEvent::Stop(15),
            RunEvent::Timeout,
            RunEvent::Timeout,
            RunEvent::TreeEmpty,
        ]);
        let expected = [
            LifecycleStep::Terminate(2),
            LifecycleStep::Kill,
            LifecycleStep::Kill,
            LifecycleStep::ReportFinal(killed()),
        ];
        assert_eq!((&steps[..], over), (&expected[..], true));
    }

    /// In every order of events, a run that is over had exactly one final report, and nothing is
    /// reported afterwards.
    #[test]
    fn every_way_to_the_end_has_one_final_report() {
        let events = [
            ended(LeftBehind::Nothing),
            ended(others()),
            RunEvent::TreeEmpty,
            RunEvent::Stop(15),
            RunEvent::LimitsExceeded,
            RunEvent::Signal(10),
            RunEvent::Timeout,
            RunEvent::Unobservable,
        ];
        for code in 0..events.len().pow(5) {
            let order = (0..5).map(|at| events[code / events.len().pow(at) % events.len()].clone());
            let (mut lifecycle, now) = (Lifecycle::new(GRACE), Instant::now());
            let mut finals = 0;
            for event in order {
                let steps = lifecycle.handle_event(event, now);
                let is_report = |step: &&LifecycleStep| {
                    matches!(step, LifecycleStep::ReportInterim(_) | LifecycleStep::ReportFinal(_))
                };
                assert!(
                    finals == 0 || !steps.iter().any(|step| is_report(&step)),
                    "reported after the end: {code}"
                );
                finals += steps
                    .iter()
                    .filter(|step| matches!(step, LifecycleStep::ReportFinal(_)))
                    .count();
            }
            assert!(
                finals <= 1 && (!lifecycle.is_over() || finals == 1),
                "{code}: {finals} final reports"
            );
        }
    }

    #[test]
    fn rounds_of_killing_grow_to_a_bound() {
        let (mut lifecycle, now) = (Lifecycle::new(GRACE), Instant::now());
        assert_eq!(lifecycle.next_timeout(now), None);
        lifecycle.handle_event(RunEvent::Stop(15), now);
        assert_eq!(lifecycle.next_timeout(now), Some(GRACE));
        for _ in 0..20 {
            lifecycle.handle_event(RunEvent::Timeout, now + GRACE);
        }
        assert_eq!(lifecycle.next_timeout(now), Some(LONGEST_ROUND));
    }
}
