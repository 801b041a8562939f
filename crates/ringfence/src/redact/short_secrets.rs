//! Secrets of a run that are too short to be searched for everywhere. They are still hidden in the
//! argument lists of the run's own programs, because we record those ourselves.

use crate::redact::secret::{Secret, redact_command_args};

/// Short secrets of one run, with their names.
#[derive(Default)]
pub struct ShortSecrets(Vec<(String, Secret)>);

impl ShortSecrets {
    /// Creates the set from names and values.
    pub fn new(secrets: Vec<(String, Secret)>) -> ShortSecrets {
        ShortSecrets(secrets)
    }

    /// Returns the arguments of a command, safe to show. An argument that contains such a value is
    /// not shown at all: the rest of it would give the value away.
    pub fn redact_argv(&self, argv: &[String]) -> Vec<String> {
        let mut shown = redact_command_args(argv);
        for (argument, shown) in argv.iter().zip(&mut shown) {
            let contains_secret = |secret: &Secret| {
                let value = secret.expose();
                !value.is_empty()
                    && argument.as_bytes().windows(value.len()).any(|window| window == value)
            };
            if let Some((name, _)) = self.0.iter().find(|(_, secret)| contains_secret(secret)) {
                *shown = format!("[secret:{name}]");
            }
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_hold_a_short_value_are_not_shown() {
        let own = ShortSecrets(vec![
            ("PIN".to_owned(), Secret::new("4711")),
            ("NONE".to_owned(), Secret::new("")),
        ]);
        let words = ["login", "4711", "--pin=4711", "471"].map(str::to_owned);
        assert_eq!(own.redact_argv(&words), ["login", "[secret:PIN]", "[secret:PIN]", "471"]);
        assert_eq!(ShortSecrets::default().redact_argv(&words), words);
    }
}
