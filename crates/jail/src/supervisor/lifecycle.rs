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

use super::Left;

/// Time between two rounds of killing: short at first, longer while something cannot be killed.
const ROUND: Duration = Duration::from_millis(5);
const LONGEST_ROUND: Duration = Duration::from_millis(500);

/// Event in the life of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The main process has ended.
    Ended { code: Option<i32>, signal: Option<i32>, left: Left },
    /// No process of the run is left.
    Empty,
    /// The server asks for the end with this signal, or is gone.
    Stop(i32),
    /// The run exceeds its limits.
    Exceeded,
    /// The server has a signal for the main process.
    Signal(i32),
    /// The time that the state waits for is over.
    Timeout,
    /// The supervisor can no longer observe the run.
    Unheard,
}

/// Step that the supervisor performs next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask every process to end.
    Terminate(i32),
    /// Kill every process.
    Kill,
    /// Pass a signal on to the main process.
    Signal(i32),
    /// Report how the main process ended and what was seen so far.
    ReportInterim(MainEnd),
    /// Report for the last time.
    ReportFinal(MainEnd),
}

/// How the main process ended, and what it left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MainEnd {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub left: Left,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Ending { until: Instant },
    Killing { round: Duration },
    Leaving { round: Duration },
    Over,
}

/// State of one run on its way to the end.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    state: State,
    grace: Duration,
    /// How the main process ended, once that is known.
    main: Option<MainEnd>,
}

impl Lifecycle {
    pub(crate) fn new(grace: Duration) -> Lifecycle {
        Lifecycle { state: State::Running, grace, main: None }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Returns how long to wait for the next event before it is [`Event::Timeout`].
    pub(crate) fn patience(&self, now: Instant) -> Option<Duration> {
        match self.state {
            State::Running | State::Over => None,
            State::Ending { until } => Some(until.saturating_duration_since(now)),
            State::Killing { round } | State::Leaving { round } => Some(round),
        }
    }

    /// Handles one event according to the table. Returns the steps to perform.
    pub(crate) fn advance(&mut self, event: Event, now: Instant) -> Vec<Step> {
        match self.state {
            State::Over => Vec::new(),
            State::Leaving { round } => match event {
                Event::Empty | Event::Unheard => self.enter(State::Over, Vec::new()),
                Event::Timeout => {
                    self.enter(State::Leaving { round: longer(round) }, vec![Step::Kill])
                }
                _ => Vec::new(),
            },
            state => self.advance_unreported(state, event, now),
        }
    }

    /// Handles the rows of the table before the final report.
    fn advance_unreported(&mut self, state: State, event: Event, now: Instant) -> Vec<Step> {
        let is_running = state == State::Running;
        let ending = State::Ending { until: now + self.grace };
        match event {
            Event::Ended { code, signal, left } => {
                let is_alone = left == Left::Nothing;
                let end = MainEnd { code, signal, left };
                self.main = Some(end.clone());
                match (is_alone, is_running) {
                    (true, _) => self.enter(
                        State::Leaving { round: LONGEST_ROUND },
                        vec![Step::ReportFinal(end)],
                    ),
                    (false, true) => self.enter(
                        ending,
                        vec![Step::ReportInterim(end), Step::Terminate(libc::SIGTERM)],
                    ),
                    (false, false) => vec![Step::ReportInterim(end)],
                }
            }
            Event::Stop(signal) if is_running => self.enter(ending, vec![Step::Terminate(signal)]),
            Event::Stop(_) => Vec::new(),
            Event::Signal(signal) => vec![Step::Signal(signal)],
            Event::Exceeded => self.enter(State::Killing { round: ROUND }, vec![Step::Kill]),
            Event::Timeout => {
                let round =
                    if let State::Killing { round } = state { longer(round) } else { ROUND };
                self.enter(State::Killing { round }, vec![Step::Kill])
            }
            Event::Empty => {
                let end = self.known_end();
                self.enter(State::Over, vec![Step::ReportFinal(end)])
            }
            Event::Unheard => {
                let end = self.known_end();
                self.enter(State::Over, vec![Step::Kill, Step::ReportFinal(end)])
            }
        }
    }

    fn enter(&mut self, state: State, steps: Vec<Step>) -> Vec<Step> {
        self.state = state;
        steps
    }

    /// Returns how the main process ended. When the init died first, no one could report that: the
    /// kernel has killed the main process with it.
    fn known_end(&self) -> MainEnd {
        let killed = MainEnd { code: None, signal: Some(libc::SIGKILL), left: Left::Nothing };
        self.main.clone().unwrap_or(killed)
    }
}

fn longer(round: Duration) -> Duration {
    (round * 2).min(LONGEST_ROUND)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(2);

    fn ended(left: Left) -> Event {
        Event::Ended { code: Some(3), signal: None, left }
    }

    fn others() -> Left {
        Left::Processes(1, vec!["sleep".to_owned()])
    }

    /// Runs the events through a new machine. Returns the steps, and whether the run is over then.
    fn run(events: impl IntoIterator<Item = Event>) -> (Vec<Step>, bool) {
        let (mut lifecycle, now) = (Lifecycle::new(GRACE), Instant::now());
        let steps = events.into_iter().flat_map(|event| lifecycle.advance(event, now)).collect();
        (steps, lifecycle.is_over())
    }

    fn exit(left: Left) -> MainEnd {
        MainEnd { code: Some(3), signal: None, left }
    }

    fn killed() -> MainEnd {
        MainEnd { code: None, signal: Some(9), left: Left::Nothing }
    }

    #[test]
    fn a_main_process_that_ends_alone_is_reported_once_and_at_once() {
        let (steps, over) =
            run([ended(Left::Nothing), Event::Stop(15), Event::Signal(2), Event::Exceeded]);
        assert_eq!((steps, over), (vec![Step::ReportFinal(exit(Left::Nothing))], false));
        let (steps, over) =
            run([ended(Left::Nothing), Event::Stop(15), Event::Empty, Event::Empty]);
        assert_eq!((steps, over), (vec![Step::ReportFinal(exit(Left::Nothing))], true));
        let (steps, _) = run([ended(Left::Nothing), Event::Timeout]);
        assert_eq!(steps, [Step::ReportFinal(exit(Left::Nothing)), Step::Kill]);
    }

    #[test]
    fn what_is_left_behind_is_asked_to_end_and_reported_again_at_the_end() {
        let (steps, over) = run([ended(others()), Event::Timeout, Event::Empty]);
        let expected = [
            Step::ReportInterim(exit(others())),
            Step::Terminate(15),
            Step::Kill,
            Step::ReportFinal(exit(others())),
        ];
        assert_eq!((&steps[..], over), (&expected[..], true));
    }

    #[test]
    fn a_run_that_ignores_the_request_is_killed_and_reported() {
        let (steps, over) =
            run([Event::Stop(2), Event::Stop(15), Event::Timeout, Event::Timeout, Event::Empty]);
        let expected = [Step::Terminate(2), Step::Kill, Step::Kill, Step::ReportFinal(killed())];
        assert_eq!((&steps[..], over), (&expected[..], true));
    }

    /// In every order of events, a run that is over had exactly one final report, and nothing is
    /// reported afterwards.
    #[test]
    fn every_way_to_the_end_has_one_final_report() {
        let events = [
            ended(Left::Nothing),
            ended(others()),
            Event::Empty,
            Event::Stop(15),
            Event::Exceeded,
            Event::Signal(10),
            Event::Timeout,
            Event::Unheard,
        ];
        for code in 0..events.len().pow(5) {
            let order = (0..5).map(|at| events[code / events.len().pow(at) % events.len()].clone());
            let (mut lifecycle, now) = (Lifecycle::new(GRACE), Instant::now());
            let mut finals = 0;
            for event in order {
                let steps = lifecycle.advance(event, now);
                let is_report =
                    |step: &&Step| matches!(step, Step::ReportInterim(_) | Step::ReportFinal(_));
                assert!(
                    finals == 0 || !steps.iter().any(|step| is_report(&step)),
                    "reported after the end: {code}"
                );
                finals += steps.iter().filter(|step| matches!(step, Step::ReportFinal(_))).count();
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
        assert_eq!(lifecycle.patience(now), None);
        lifecycle.advance(Event::Stop(15), now);
        assert_eq!(lifecycle.patience(now), Some(GRACE));
        for _ in 0..20 {
            lifecycle.advance(Event::Timeout, now + GRACE);
        }
        assert_eq!(lifecycle.patience(now), Some(LONGEST_ROUND));
    }
}
