//! `ringfence secret`: manages the values that a config refers to but does not contain. No command
//! prints a value.

mod prompt;

use std::collections::BTreeSet;
use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant, UNIX_EPOCH};

use clap::Subcommand;
use serde_json::json;
use zeroize::Zeroizing;

use crate::base::clock::{format_utc, parse_day, parse_duration};
use crate::base::{Error, Kind, Result};
use crate::config::secrets::{Keyring, MAX_VALUE_BYTES, unix_seconds};
use crate::config::{ConfigFlags, ProcessEnv, SecretBackends, resolve_secret_backends};
use crate::redact::known_secrets;
use crate::redact::secret::Secret;

/// Store the secrets that `${secret:NAME}` in the config refers to
///
/// A config file names a secret but does not contain it: `env = { DB_PASSWORD = "${secret:DB}" }`.
/// The value is stored here, encrypted, in a file that only you can read, or in the system keyring.
/// A running server uses a new value from the next call on. No command shows a value.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  ringfence secret set DB                        type the value; it is not shown\n  pass show db | ringfence secret set DB         from another program\n  ringfence secret set DB --expires-in 30d < f   from a file; calls are refused after 30 days\n  ringfence secret list                          show stored and required secrets\n  ringfence secret rm DB\n\nValues are never accepted on the command line, which shells keep in their history and other processes can see."
)]
pub struct SecretArgs {
    #[command(subcommand)]
    command: SecretCommand,
    /// Directory for runtime files (default: $XDG_STATE_HOME/ringfence)
    #[arg(long, value_name = "DIR", global = true)]
    root: Option<PathBuf>,
    /// Config file to read (default: $XDG_CONFIG_HOME/ringfence/config.toml)
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Key file for the secret store, if not in its default location (RINGFENCE_SECRETS_KEY_FILE)
    #[arg(long, value_name = "FILE", global = true)]
    key_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum SecretCommand {
    /// Store a value, typed or read from standard input; replaces the old value
    ///
    /// At a terminal, prompts for the value without echo. Otherwise reads standard input to the end
    /// and drops one trailing newline.
    Set {
        /// Name of the secret: letters, digits and `_`, as in `${secret:NAME}`
        name: String,
        /// Catches a value given as an argument, so that clap's error does not repeat it.
        #[arg(hide = true, allow_hyphen_values = true)]
        more: Vec<std::ffi::OsString>,
        /// Refuse calls that need the secret after this time: 12h, 30d, 8w
        #[arg(long, value_name = "TIME", value_parser = parse_age, conflicts_with = "expires")]
        expires_in: Option<Duration>,
        /// Refuse calls that need the secret from the start of this day (UTC): 2026-12-31
        #[arg(long, value_name = "DAY", value_parser = parse_expiry)]
        expires: Option<u64>,
        /// Store it in the system keyring; a value of the same name in the store takes precedence
        #[arg(long, conflicts_with_all = ["expires_in", "expires"])]
        keyring: bool,
    },
    /// List names, when they were set and expire, where they are stored, and which tools use them
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a value
    Rm {
        /// Name of the secret
        name: String,
        /// Remove it from the system keyring instead of the store
        #[arg(long)]
        keyring: bool,
    },
}

/// Runs `ringfence secret`.
pub fn run(args: &SecretArgs, out: &mut impl Write) -> Result<()> {
    let flags = ConfigFlags {
        root: args.root.clone(),
        config: args.config.clone(),
        secrets_key_file: args.key_file.clone(),
        ..ConfigFlags::default()
    };
    let backends = resolve_secret_backends(&flags, &ProcessEnv::from_process())?;
    let text = match &args.command {
        SecretCommand::Set { more, .. } if !more.is_empty() => {
            return Err(Error::invalid_arguments("values are not accepted on the command line")
                .with_hint("Type the value at the prompt, or send it to standard input. If the argument was a real value, it is now in your shell's history."));
        }
        SecretCommand::Set { name, expires_in, expires, keyring, .. } => {
            let expires = expires
                .or_else(|| expires_in.map(|age| unix_seconds().saturating_add(age.as_secs())));
            set_secret(&backends, name, expires, *keyring)?
        }
        SecretCommand::List { json } => list_secrets(&backends, *json)?,
        SecretCommand::Rm { name, keyring } => remove_secret(&backends, name, *keyring)?,
    };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader closed the pipe early (`| head`); that is not an error.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::internal("the output cannot be written").with_source(error))
        }
        _ => Ok(()),
    }
}

fn set_secret(
    backends: &SecretBackends,
    name: &str,
    expires: Option<u64>,
    to_keyring: bool,
) -> Result<String> {
    if !crate::config::secrets::is_secret_name(name) {
        return Err(Error::invalid_arguments("not a valid name for a secret")
            .with_hint("Use up to 128 letters, digits and `_`, not starting with a digit: `ringfence secret set DB_PASSWORD`."));
    }
    if expires.is_some_and(|expires| expires <= unix_seconds()) {
        return Err(Error::invalid_arguments("the expiry date is in the past")
            .with_hint("Give a future day."));
    }
    let keyring = if to_keyring { Some(require_keyring(backends)?) } else { None };
    let value = read_value(name)?;
    match keyring {
        Some(keyring) => keyring.store_secret(name, &value)?,
        None => backends.store.put_secret(name, &value, expires)?,
    }
    let location = if to_keyring { "in the system keyring" } else { "in the store" };
    let mut text = format!(
        "Stored `{name}` {location}. Use it as ${{secret:{name}}} in a tool's args or env.\n"
    );
    if let Some(expires) = expires {
        text.push_str(&format!("It expires at {}.\n", format_time(expires)));
    }
    if to_keyring && backends.store.read_all()?.contains_key(name) {
        text.push_str(
            "The store also has a value of this name, which takes precedence; remove it with `ringfence secret rm`.\n",
        );
    }
    if !known_secrets::is_searchable(&value) {
        let shortest = known_secrets::MIN_SECRET_BYTES;
        text.push_str(&format!(
            "It is shorter than {shortest} bytes, so it cannot be redacted from program output.\n"
        ));
    }
    Ok(text)
}

fn require_keyring(backends: &SecretBackends) -> Result<&Keyring> {
    backends.keyring.as_ref().ok_or_else(|| {
        Error::new(Kind::Unavailable, "no keyring is available").with_hint(
            "A keyring needs libsecret's `secret-tool`, a session with a keyring, and `keyring = true` under [secrets]. Omit --keyring to use the store.",
        )
    })
}

fn read_value(name: &str) -> Result<Secret> {
    let failed =
        |error| Error::new(Kind::Unavailable, "the value cannot be read").with_source(error);
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return prompt::prompt_secret(&format!("Value of {name} (not shown): "))
            .map_err(failed)?
            .ok_or_else(|| {
                Error::new(Kind::Cancelled, "nothing was stored")
                    .with_hint("Type the value and press Enter.")
            });
    }
    // Allows for one line ending, plus one byte to detect a value that is too long.
    let mut value = Zeroizing::new(Vec::with_capacity(MAX_VALUE_BYTES + 4));
    stdin.lock().take(MAX_VALUE_BYTES as u64 + 3).read_to_end(&mut value).map_err(failed)?;
    if value.last() == Some(&b'\n') {
        value.pop();
        value.pop_if(|last| *last == b'\r');
    }
    Ok(Secret::new(std::mem::take(&mut *value)))
}

fn remove_secret(backends: &SecretBackends, name: &str, from_keyring: bool) -> Result<String> {
    let existed = match from_keyring {
        true => require_keyring(backends)?.remove(name)?,
        false => backends.store.remove(name)?,
    };
    if existed {
        return Ok(format!("Removed `{name}`.\n"));
    }
    let location = if from_keyring { "the system keyring" } else { "the store" };
    Err(Error::new(Kind::NotFound, format!("there is no such secret in {location}"))
        .with_hint("Run `ringfence secret list` to see all secrets."))
}

/// One row of `ringfence secret list`.
struct SecretRow {
    name: String,
    place: &'static str,
    set: Option<u64>,
    expires: Option<u64>,
    tools: Vec<String>,
}

fn collect_rows(backends: &SecretBackends) -> Result<Vec<SecretRow>> {
    let stored = backends.store.read_all()?;
    let keyring_names: BTreeSet<String> = match &backends.keyring {
        Some(keyring) => {
            let mut names: BTreeSet<String> = keyring.list_names()?.into_iter().collect();
            let deadline = Instant::now() + Duration::from_secs(10);
            for name in backends.tools_by_secret.keys().filter(|name| !stored.contains_key(*name)) {
                if !names.contains(name) && keyring.get(name, deadline)?.is_some() {
                    names.insert(name.clone());
                }
            }
            names
        }
        None => BTreeSet::new(),
    };
    let names: BTreeSet<&String> =
        stored.keys().chain(&keyring_names).chain(backends.tools_by_secret.keys()).collect();
    let row = |name: &String| {
        let item = stored.get(name);
        let place = match (item, keyring_names.contains(name)) {
            (Some(_), _) => "store",
            (None, true) => "keyring",
            (None, false) => "missing",
        };
        let tools = backends.tools_by_secret.get(name).cloned().unwrap_or_default();
        let (set, expires) = (item.map(|item| item.set_at), item.and_then(|item| item.expires_at));
        SecretRow { name: name.clone(), place, set, expires, tools }
    };
    Ok(names.into_iter().map(row).collect())
}

fn list_secrets(backends: &SecretBackends, as_json: bool) -> Result<String> {
    let rows = collect_rows(backends)?;
    if as_json {
        let expired =
            |row: &SecretRow| row.expires.is_some_and(|expires| expires <= unix_seconds());
        let entries: Vec<_> = rows
            .iter()
            .map(|row| {
                json!({
                    "name": row.name, "place": row.place, "set": row.set.map(format_time), "expires": row.expires.map(format_time),
                    "expired": expired(row), "used_by": row.tools,
                })
            })
            .collect();
        return Ok(format!("{:#}\n", json!({ "secrets": entries })));
    }
    if rows.is_empty() {
        return Ok(
            "No secrets are stored, and the config uses none. Store one with `ringfence secret set NAME`.\n".into()
        );
    }
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(4);
    let mut text =
        format!("{:width$}  {:7}  {:20}  {:29}  USED BY\n", "NAME", "WHERE", "SET", "EXPIRES");
    for row in &rows {
        let set = row.set.map_or_else(|| "-".to_owned(), format_time);
        let expires = match row.expires {
            Some(expiry) if expiry <= unix_seconds() => format!("{} EXPIRED", format_time(expiry)),
            Some(expiry) => format_time(expiry),
            None => "-".to_owned(),
        };
        let tools = if row.tools.is_empty() { "-".to_owned() } else { row.tools.join(", ") };
        text.push_str(&format!(
            "{:width$}  {:7}  {set:20}  {expires:29}  {tools}\n",
            row.name, row.place
        ));
    }
    Ok(text)
}

/// Formats a time to the second: `2026-11-16T15:50:33Z`.
fn format_time(seconds: u64) -> String {
    let text =
        format_utc(UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH));
    format!("{}Z", text.split('.').next().unwrap_or_default())
}

fn parse_age(text: &str) -> std::result::Result<Duration, String> {
    let syntax_error = || "give a time such as 12h, 30d or 8w".to_owned();
    // An upper bound that is longer than any useful lifetime and well within the clock's range.
    let max_age = Duration::from_secs(100 * 366 * 86_400);
    parse_duration(text).filter(|age| !age.is_zero() && *age <= max_age).ok_or_else(syntax_error)
}

fn parse_expiry(text: &str) -> std::result::Result<u64, String> {
    parse_day(text).ok_or_else(|| "give a day such as 2026-12-31".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_shown() {
        assert_eq!(parse_age("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for wrong in ["", "d", "30", "0d", "-1d", "3y", "99999999999999w", "9000w", "ü"] {
            assert!(parse_age(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            parse_expiry("2026-12-31").map(format_time).as_deref(),
            Ok("2026-12-31T00:00:00Z")
        );
        assert!(parse_expiry("tomorrow").is_err());
    }
}
