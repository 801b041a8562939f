//! `ringfence token`: what it makes, a server with the same settings takes.

use std::process::{Command, Output};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::server::{Scratch, ringfence};
use crate::support::token::{SECRET, now};
use crate::support::{Options, SESSIONS, Transport};

fn token(scratch: &Arc<Scratch>, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command: Command = ringfence(scratch);
    command.arg("token").args(args).envs(env.iter().copied());
    command.output().unwrap()
}

#[track_caller]
fn made(output: &Output) -> String {
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let line = text.strip_suffix('\n').unwrap();
    assert!(!line.contains(char::is_whitespace), "{line:?}");
    line.to_owned()
}

fn claims(token: &str) -> Value {
    use base64::Engine;
    let part = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part).unwrap())
        .unwrap()
}

#[test]
fn a_server_takes_the_token_and_knows_its_subject() {
    let env =
        [("MCP_AUTH_JWT_SECRET", SECRET), ("MCP_AUTH_AUDIENCE", "here"), ("MCP_AUTH_ISSUER", "us")];
    let options = Options::new(Transport::Http).env("MCP_AUTH_ENABLED", "true");
    let options = env.iter().fold(options, |options, (name, value)| options.env(name, value));
    let mut server = options.spawn();
    // Auth need not be on where the token is made.
    let token = made(&token(&server.scratch, &["--sub", "ann", "--ttl", "2h"], &env));
    let claims = claims(&token);
    assert_eq!(
        (&claims["sub"], &claims["aud"], &claims["iss"]),
        (&json!("ann"), &json!("here"), &json!("us"))
    );
    let left = claims["exp"].as_u64().unwrap() - now();
    assert!((7100..=7200).contains(&left), "{left}");
    let mut client = server.client_as(SESSIONS, Some(&token));
    client.shake_hands();
    client.call("file.list", json!({}));
    assert_eq!(server.stops(1)[0]["principal"], "ann@us");
}

#[test]
fn the_secret_may_be_in_the_file_of_the_config() {
    let scratch = Scratch::new();
    let secret = made(&token(&scratch, &["--new-secret"], &[]));
    assert_eq!(secret.len(), 44);
    assert_ne!(secret, made(&token(&scratch, &["--new-secret"], &[])));
    std::fs::write(scratch.path().join("secret"), format!("{secret}\n")).unwrap();
    let config = scratch.path().join("config.toml");
    std::fs::write(&config, "[auth]\nenabled = true\njwt_secret_file = \"secret\"\n").unwrap();
    let config_text = std::fs::read_to_string(&config).unwrap();
    let made = made(&token(&scratch, &["--config", config.to_str().unwrap()], &[("USER", "bob")]));
    assert_eq!(claims(&made)["sub"], "bob");
    let mut server = Options::new(Transport::Http).on(&scratch).config(&config_text).spawn();
    server.client_as(SESSIONS, Some(&made)).shake_hands();
}

/// Arguments, environment, exit code, and a part of what is said.
type RefusedToken =
    (&'static [&'static str], &'static [(&'static str, &'static str)], i32, &'static str);

#[test]
fn what_the_server_would_refuse_is_not_made_and_no_secret_is_shown() {
    let scratch = Scratch::new();
    const SECRET_SET: (&str, &str) = ("MCP_AUTH_JWT_SECRET", SECRET);
    const USER: (&str, &str) = ("USER", "me");
    let cases: &[RefusedToken] = &[
        (&[], &[USER], 66, "MCP_AUTH_JWT_SECRET"),
        (&[], &[USER], 66, "ringfence token --new-secret"),
        (&[], &[USER, ("MCP_AUTH_JWT_SECRET", "short-secret")], 64, "shorter than 16 bytes"),
        (&[], &[USER, ("MCP_AUTH_JWT_SECRET", "-----BEGIN PUBLIC KEY-----\nMCow")], 64, "PEM"),
        (
            &["--audience", "there"],
            &[USER, SECRET_SET, ("MCP_AUTH_AUDIENCE", "here")],
            64,
            "would refuse",
        ),
        (&["--issuer", "them"], &[USER, SECRET_SET, ("MCP_AUTH_ISSUER", "us")], 64, "would refuse"),
        (&["--sub", " "], &[SECRET_SET], 64, "would refuse"),
        (&[], &[SECRET_SET], 64, "--sub"),
        (&["--ttl", "366d"], &[USER, SECRET_SET], 2, "365d"),
        (&["--ttl", "0s"], &[USER, SECRET_SET], 2, "1s"),
        (&["--ttl", "soon"], &[USER, SECRET_SET], 2, "30s, 10m"),
        (&["--new-secret", "--sub", "x"], &[], 2, "cannot be used with"),
    ];
    for (args, env, code, text) in cases {
        let output = token(&scratch, args, env);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {said}");
        assert!(said.contains(text), "{args:?}: {said}");
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(!said.contains(SECRET) && !said.contains("short-secret"), "{said}");
    }
}
