//! Time: timestamps for people, and a deadline that is paused while a human decides.

use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::base::IgnorePoison;

/// Returns the current time as `2026-11-15T21:40:03.123456Z`.
pub fn now_utc() -> String {
    format_utc(SystemTime::now())
}

/// Returns the milliseconds since 1970.
pub fn unix_millis() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// Formats a time as `2026-11-15T21:40:03.123456Z`.
pub fn format_utc(time: SystemTime) -> String {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since_epoch.as_secs();
    let (year, month, day) = civil_from_days(seconds / 86_400);
    let second_of_day = seconds % 86_400;
    // By hand, because the formatting machinery takes a microsecond, and every call has four times.
    let mut text = String::with_capacity(27);
    for (number, width, separator) in [
        (year, 4, '-'),
        (month, 2, '-'),
        (day, 2, 'T'),
        (second_of_day / 3600, 2, ':'),
        (second_of_day / 60 % 60, 2, ':'),
        (second_of_day % 60, 2, '.'),
        (u64::from(since_epoch.subsec_micros()), 6, 'Z'),
    ] {
        push_digits(&mut text, number, width);
        text.push(separator);
    }
    text
}

/// Appends the last `width` decimal digits of a number.
fn push_digits(text: &mut String, number: u64, width: u32) {
    for place in (0..width).rev() {
        let digit = number / 10_u64.pow(place) % 10;
        text.push(char::from_digit(u32::try_from(digit).unwrap_or(0), 10).unwrap_or('0'));
    }
}

/// Returns the seconds from 1970 to the beginning of a day written as `2026-12-31`, or `None` for a
/// day that does not exist.
pub fn parse_day(text: &str) -> Option<u64> {
    let parts: Vec<u64> = text.split('-').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let is_well_formed = text.bytes().enumerate().all(|(index, byte)| {
        if matches!(index, 4 | 7) { byte == b'-' } else { byte.is_ascii_digit() }
    });
    let ([year, month, day], true, 10) = (&parts[..], is_well_formed, text.len()) else {
        return None;
    };
    let (year, month, day) = (*year, *month, *day);
    // Counts from March, so that a leap day is the last day of its year.
    let y = if month <= 2 { year.checked_sub(1)? } else { year };
    let days = (y / 400) * 146_097 + (y % 400) * 365 + (y % 400) / 4 - (y % 400) / 100
        + (153 * ((month + 9) % 12) + 2) / 5
        + day;
    let days = days.checked_sub(719_469)?;
    (civil_from_days(days) == (year, month, day)).then_some(days * 86_400)
}

/// Converts days since 1970-01-01 to a Gregorian date. Eras of 400 years keep the arithmetic in
/// integers.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z % 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + u64::from(month <= 2), month, day)
}

/// Time that a call may still run. Waiting for a human does not count: the code that asks holds a
/// [`Pause`].
pub struct Deadline {
    state: Mutex<DeadlineState>,
    changed: Notify,
}

struct DeadlineState {
    remaining: Duration,
    /// When the clock last started; `None` while it is paused.
    running_since: Option<Instant>,
    pauses: usize,
}

impl Deadline {
    /// Creates a deadline that expires after `limit` of unpaused time.
    pub fn after(limit: Duration) -> Self {
        Deadline {
            state: Mutex::new(DeadlineState {
                remaining: limit,
                running_since: Some(Instant::now()),
                pauses: 0,
            }),
            changed: Notify::new(),
        }
    }

    /// Stops the clock until the returned guard is dropped. Pauses may overlap: the clock runs
    /// again once all are dropped.
    pub fn pause(&self) -> Pause<'_> {
        let mut state = self.lock();
        state.pauses += 1;
        if let Some(since) = state.running_since.take() {
            state.remaining = state.remaining.saturating_sub(since.elapsed());
        }
        drop(state);
        self.changed.notify_waiters();
        Pause(self)
    }

    /// Resolves when the time is up.
    pub async fn wait_until_passed(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let end = {
                let state = self.lock();
                state.running_since.map(|since| since + state.remaining)
            };
            match end {
                Some(end) => tokio::select! {
                    () = tokio::time::sleep_until(end) => return,
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, DeadlineState> {
        self.state.lock().ignore_poison()
    }
}

/// Guard that keeps a [`Deadline`] from running.
pub struct Pause<'a>(&'a Deadline);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.pauses -= 1;
        if state.pauses == 0 {
            state.running_since = Some(Instant::now());
        }
        drop(state);
        self.0.changed.notify_waiters();
    }
}

/// Parses a duration as people write it: `30s`, `10m`, `2h`, `7d`, `8w`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) =
        text.split_at(text.len() - text.chars().next_back().map_or(0, char::len_utf8));
    let unit: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit).map(Duration::from_secs)
}

/// Formats a duration for people, in whole seconds: `12 s`, `4 min 5 s`, `2 h 3 min`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_on_both_sides_of_a_leap_day() {
        let at = |seconds| format_utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.000000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000Z");
        assert_eq!(at(1_794_778_800), "2026-11-15T21:40:00.000000Z");
        for seconds in (0..400 * 366).map(|day: u64| day * 86_400) {
            assert_eq!(parse_day(&at(seconds)[..10]), Some(seconds));
        }
        for wrong in [
            "2026-02-29",
            "2026-13-01",
            "2026-00-01",
            "2026-1-01",
            "1969-12-31",
            "0000-01-01",
            "2026-11-15Z",
            "+026-01-01",
        ] {
            assert_eq!(parse_day(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn spans_are_written_as_people_say_them() {
        for (seconds, text) in
            [(0, "0 s"), (59, "59 s"), (60, "1 min 0 s"), (299, "4 min 59 s"), (7384, "2 h 3 min")]
        {
            assert_eq!(format_duration(Duration::from_secs(seconds)), text);
        }
    }

    #[tokio::test]
    async fn a_paused_deadline_does_not_pass() {
        let limit = Duration::from_millis(40);
        let waits = async |deadline: &Deadline| {
            tokio::time::timeout(limit * 3, deadline.wait_until_passed()).await.is_err()
        };
        let deadline = Deadline::after(limit);
        let pause = deadline.pause();
        assert!(waits(&deadline).await);
        let second = deadline.pause();
        drop(pause);
        assert!(waits(&deadline).await);
        drop(second);
        deadline.wait_until_passed().await;
    }
}
