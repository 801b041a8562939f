//! Values that were registered: those of the operator's secrets, and tokens of logins.
//!
//! Both are kept apart. A server may renew its tokens as often as it likes, and must not displace
//! the operator's secrets, or the tokens of other logins, from the search.

use std::collections::BTreeMap;

use super::is_searchable;
use crate::redact::secret::Secret;

/// Maximum number of replaced values that are still searched for.
pub(super) const MAX_RETIRED: usize = 256;
/// Maximum number of tokens of one login that are searched for: those in use and those before them.
const MAX_LOGIN_TOKENS: usize = 6;

/// All registered values.
pub(super) struct RegisteredSecrets {
    /// Oldest first, each with its name.
    secrets: Vec<(String, Secret)>,
    /// By login.
    tokens: BTreeMap<String, LoginTokens>,
}

/// Tokens of one login, oldest first.
struct LoginTokens {
    /// Name that is shown in place of a token.
    name: String,
    tokens: Vec<Secret>,
}

/// What registering values has changed.
pub(super) struct RegistrationChange {
    pub(super) is_changed: bool,
    /// Number of old values that are no longer known.
    pub(super) dropped: usize,
}

impl RegisteredSecrets {
    pub(super) const fn new() -> RegisteredSecrets {
        RegisteredSecrets { secrets: Vec::new(), tokens: BTreeMap::new() }
    }

    /// Adds values of the operator's secrets.
    pub(super) fn add_secrets<'a>(
        &mut self,
        secrets: impl IntoIterator<Item = (&'a str, &'a Secret)>,
    ) -> RegistrationChange {
        let new_secrets: Vec<(&str, &Secret)> =
            secrets.into_iter().filter(|(_, secret)| is_searchable(secret)).collect();
        let known = &mut self.secrets;
        let is_new = new_secrets
            .iter()
            .any(|(_, secret)| !known.iter().any(|(_, old)| is_same(old, secret)));
        // Newest last.
        known.retain(|(_, old)| !new_secrets.iter().any(|(_, secret)| is_same(old, secret)));
        let dropped = known.len().saturating_sub(MAX_RETIRED);
        known.drain(..dropped);
        for (name, secret) in new_secrets {
            if !known.iter().any(|(_, old)| is_same(old, secret)) {
                known.push((name.to_owned(), secret.clone()));
            }
        }
        RegistrationChange { is_changed: is_new || dropped > 0, dropped }
    }

    /// Adds tokens of a login. Returns whether there are new ones.
    pub(super) fn add_tokens(&mut self, login: &str, name: &str, tokens: &[Secret]) -> bool {
        let known = self
            .tokens
            .entry(login.to_owned())
            .or_insert_with(|| LoginTokens { name: name.to_owned(), tokens: Vec::new() });
        let mut is_changed = false;
        for token in tokens.iter().filter(|token| is_searchable(token)) {
            let position = known.tokens.iter().position(|old| is_same(old, token));
            is_changed |= position.is_none();
            if let Some(position) = position {
                known.tokens.remove(position);
            }
            known.tokens.push(token.clone());
        }
        let excess = known.tokens.len().saturating_sub(MAX_LOGIN_TOKENS);
        known.tokens.drain(..excess);
        is_changed
    }

    /// Returns all values with their names.
    pub(super) fn values(&self) -> impl Iterator<Item = (&str, &Secret)> {
        let secrets = self.secrets.iter().map(|(name, secret)| (name.as_str(), secret));
        let tokens = self.tokens.values();
        secrets.chain(
            tokens.flat_map(|login| login.tokens.iter().map(|token| (login.name.as_str(), token))),
        )
    }
}

fn is_same(one: &Secret, other: &Secret) -> bool {
    one.expose() == other.expose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(registered: &RegisteredSecrets) -> Vec<String> {
        let text = |secret: &Secret| String::from_utf8(secret.expose().to_vec()).unwrap();
        registered.values().map(|(name, secret)| format!("{name}={}", text(secret))).collect()
    }

    #[test]
    fn tokens_displace_only_older_tokens_of_their_own_login() {
        let mut registered = RegisteredSecrets::new();
        registered.add_secrets([("DB", &Secret::new("value-of-db"))]);
        registered.add_tokens("b", "login:b", &[Secret::new("token-of-b")]);
        let token = |at: usize| Secret::new(format!("token-a-{at:05}"));
        for at in 0..2 * MAX_RETIRED {
            assert!(registered.add_tokens("a", "login:a", &[token(at)]));
        }
        assert!(!registered.add_tokens("a", "login:a", &[token(2 * MAX_RETIRED - 1)]));
        let names = names(&registered);
        assert_eq!(names.len(), 2 + MAX_LOGIN_TOKENS);
        assert_eq!(names[0], "DB=value-of-db");
        assert!(names.contains(&"login:a=token-a-00511".to_owned()), "{names:?}");
        assert!(names.contains(&"login:b=token-of-b".to_owned()), "{names:?}");
    }

    #[test]
    fn a_token_that_is_in_use_is_not_displaced() {
        let mut registered = RegisteredSecrets::new();
        for at in 0..20 {
            let tokens = [Secret::new("refresh-token"), Secret::new(format!("access-token-{at}"))];
            registered.add_tokens("a", "login:a", &tokens);
        }
        assert!(names(&registered).contains(&"login:a=refresh-token".to_owned()));
    }
}
