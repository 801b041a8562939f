use std::sync::LazyLock;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair, RsaKeyPair,
};
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{EncodingKey, Header, encode, get_current_timestamp};

use super::*;
use crate::redact::secret::Secret;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

/// A private key to sign with and its public half as an operator would configure it.
struct Pair {
    algorithm: Algorithm,
    private: EncodingKey,
    public: AuthKey,
}

fn pem(label: &str, der: &[u8]) -> String {
    let body: Vec<String> = STANDARD
        .encode(der)
        .as_bytes()
        .chunks(64)
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", body.join("\n"))
}

fn spki<'a>(key: &impl AsDer<PublicKeyX509Der<'a>>) -> String {
    pem("PUBLIC KEY", key.as_der().unwrap().as_ref())
}

fn rsa(size: KeySize) -> (Vec<u8>, String) {
    let key = RsaKeyPair::generate(size).unwrap();
    let private: Pkcs8V1Der<'_> = key.as_der().unwrap();
    (private.as_ref().to_vec(), spki(key.public_key()))
}

fn hs256(secret: &[u8]) -> Pair {
    Pair {
        algorithm: Algorithm::HS256,
        private: EncodingKey::from_secret(secret),
        public: AuthKey::Secret(Secret::new(secret)),
    }
}

fn rs256() -> Pair {
    let (private, public) = rsa(KeySize::Rsa2048);
    let private = EncodingKey::from_rsa_pem(pem("PRIVATE KEY", &private).as_bytes()).unwrap();
    Pair { algorithm: Algorithm::RS256, private, public: AuthKey::PublicPem(public) }
}

fn es256() -> Pair {
    let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let private = key.to_pkcs8v1().unwrap();
    Pair {
        algorithm: Algorithm::ES256,
        private: EncodingKey::from_ec_der(private.as_ref()),
        public: AuthKey::PublicPem(spki(key.public_key())),
    }
}

fn eddsa() -> Pair {
    let key = Ed25519KeyPair::generate().unwrap();
    let private: Pkcs8V1Der<'_> = key.as_der().unwrap();
    Pair {
        algorithm: Algorithm::EdDSA,
        private: EncodingKey::from_ed_der(private.as_ref()),
        public: AuthKey::PublicPem(spki(key.public_key())),
    }
}

/// Two of each kind: the server's and a stranger's. RSA keys take a while, so they are made once.
static PAIRS: LazyLock<Vec<(Pair, Pair)>> = LazyLock::new(|| {
    vec![
        (hs256(SECRET), hs256(b"another-secret-of-the-same-size!!")),
        (rs256(), rs256()),
        (es256(), es256()),
        (eddsa(), eddsa()),
    ]
});

fn verifier(key: &AuthKey) -> TokenVerifier {
    TokenVerifier::new(&AuthSettings { key: key.clone(), audience: None, issuer: None }).unwrap()
}

fn sign(pair: &Pair, claims: &Value) -> String {
    format!("Bearer {}", encode(&Header::new(pair.algorithm), claims, &pair.private).unwrap())
}

fn good() -> Value {
    json!({"sub": "ada", "exp": get_current_timestamp() + 600})
}

fn with(changes: Value) -> Value {
    let mut claims = good();
    for (key, value) in changes.as_object().unwrap() {
        claims[key] = value.clone();
    }
    claims
}

fn reason(verifier: &TokenVerifier, header: Option<&str>) -> &'static str {
    let error = verifier.verify_header(header).unwrap_err();
    assert_eq!(error.kind(), Kind::Unauthenticated);
    assert!(error.hint_text().is_some());
    let said = format!("{error:?} {:?}", error.hint_text());
    if let Some(token) =
        header.and_then(|header| header.split(' ').nth(1)).filter(|token| token.len() > 8)
    {
        assert!(!said.contains(token), "the token is repeated: {said}");
    }
    error.reason_name().unwrap()
}

#[test]
fn every_algorithm_accepts_its_own_and_refuses_the_rest() {
    for (ours, stranger) in PAIRS.iter() {
        let verifier = verifier(&ours.public);
        let now = get_current_timestamp();
        assert_eq!(
            verifier.verify_header(Some(&sign(ours, &good()))).unwrap().principal.name(),
            "ada@",
            "{:?}",
            ours.algorithm
        );
        assert_eq!(
            reason(&verifier, Some(&sign(stranger, &good()))),
            "bad_signature",
            "{:?}",
            ours.algorithm
        );
        let table = [
            (json!({"exp": now - 20}), None),
            (json!({"exp": now - 60}), Some("expired")),
            (json!({"nbf": now + 20}), None),
            (json!({"nbf": now + 120}), Some("not_yet_valid")),
            (json!({"nbf": "soon"}), Some("malformed_token")),
            (json!({"exp": null}), Some("malformed_token")),
            (json!({"exp": "never"}), Some("malformed_token")),
            (json!({"sub": ""}), Some("no_subject")),
            (json!({"sub": "  "}), Some("no_subject")),
            (json!({"sub": null}), Some("no_subject")),
            (json!({"sub": 7}), Some("no_subject")),
            (json!({"sub": "a\u{1b}[2K"}), Some("no_subject")),
            (json!({"sub": "x".repeat(513)}), Some("no_subject")),
            (json!({"aud": "somebody else"}), None),
        ];
        for (changes, expected) in table {
            let token = sign(ours, &with(changes.clone()));
            let outcome =
                verifier.verify_header(Some(&token)).err().and_then(|error| error.reason_name());
            assert_eq!(outcome, expected, "{:?} {changes}", ours.algorithm);
        }
        let mut without = good();
        without.as_object_mut().unwrap().remove("exp");
        assert_eq!(reason(&verifier, Some(&sign(ours, &without))), "malformed_token");
    }
}

#[test]
fn a_token_cannot_choose_its_algorithm() {
    for (ours, _) in PAIRS.iter() {
        let verifier = verifier(&ours.public);
        for (other, _) in PAIRS.iter().filter(|(other, _)| other.algorithm != ours.algorithm) {
            assert_eq!(reason(&verifier, Some(&sign(other, &good()))), "wrong_algorithm");
        }
        // Signed with the bytes of the public key, which everybody knows, as if they were a secret.
        if let AuthKey::PublicPem(pem) = &ours.public {
            for bytes in [pem.as_bytes(), pem.trim().as_bytes()] {
                let forged = Pair {
                    algorithm: Algorithm::HS256,
                    private: EncodingKey::from_secret(bytes),
                    public: ours.public.clone(),
                };
                assert_eq!(reason(&verifier, Some(&sign(&forged, &good()))), "wrong_algorithm");
            }
        }
        for alg in ["none", "None", "NONE", "HS512", "PS256", ""] {
            let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
            let token =
                format!("Bearer {}.{}.", part(json!({"alg": alg, "typ": "JWT"})), part(good()));
            assert_eq!(reason(&verifier, Some(&token)), "wrong_algorithm", "{alg}");
        }
    }
}

#[test]
fn changed_tokens_and_garbage_are_refused() {
    let ours = &PAIRS[0].0;
    let verifier = verifier(&ours.public);
    let token = sign(ours, &good());
    let parts: Vec<&str> = token.split('.').collect();
    let payload = URL_SAFE_NO_PAD.encode(with(json!({"sub": "root"})).to_string());
    assert_eq!(
        reason(&verifier, Some(&format!("{}.{payload}.{}", parts[0], parts[2]))),
        "bad_signature"
    );
    assert_eq!(reason(&verifier, Some(&format!("{}.{}.", parts[0], parts[1]))), "bad_signature");
    for header in [
        "Bearer ",
        "Bearer",
        "Bearer x",
        "Bearer a.b.c",
        "Bearer ....",
        "Bearer \u{fc}.b.c",
        "Bearer one two",
    ] {
        assert_eq!(reason(&verifier, Some(header)), "malformed_token", "{header}");
    }
    assert_eq!(
        reason(&verifier, Some(&format!("Bearer {}", "a".repeat(MAX_TOKEN_BYTES + 1)))),
        "malformed_token"
    );
    for header in [None, Some(""), Some("Basic YTpi"), Some("Bearerx y")] {
        assert_eq!(reason(&verifier, header), "missing_token", "{header:?}");
    }
    let header = Header { crit: Some(vec!["exp".into()]), ..Header::new(Algorithm::HS256) };
    let critical = encode(&header, &good(), &ours.private).unwrap();
    assert_eq!(reason(&verifier, Some(&format!("Bearer {critical}"))), "malformed_token");
}

#[test]
fn the_scheme_is_read_in_any_case() {
    let ours = &PAIRS[0].0;
    let verifier = verifier(&ours.public);
    let token = sign(ours, &good());
    for scheme in ["bearer", "BEARER", "  Bearer", "Bearer  "] {
        assert!(
            verifier.verify_header(Some(&token.replacen("Bearer", scheme, 1))).is_ok(),
            "{scheme}"
        );
    }
}

#[test]
fn audience_and_issuer_count_when_they_are_set() {
    let ours = &PAIRS[0].0;
    let auth = AuthSettings {
        key: ours.public.clone(),
        audience: Some("https://rf/mcp".into()),
        issuer: Some("https://idp".into()),
    };
    let verifier = TokenVerifier::new(&auth).unwrap();
    let (aud, iss) = ("https://rf/mcp", "https://idp");
    let table = [
        (json!({"aud": aud, "iss": iss}), None),
        (json!({"aud": ["x", aud], "iss": iss}), None),
        (json!({"aud": ["x"], "iss": iss}), Some("wrong_audience")),
        (json!({"aud": [], "iss": iss}), Some("wrong_audience")),
        (json!({"aud": "https://rf/mcp/", "iss": iss}), Some("wrong_audience")),
        (json!({"iss": iss}), Some("wrong_audience")),
        (json!({"aud": aud}), Some("wrong_issuer")),
        (json!({"aud": aud, "iss": "https://idp.evil"}), Some("wrong_issuer")),
        (json!({"aud": aud, "iss": [iss]}), Some("wrong_issuer")),
    ];
    for (changes, expected) in table {
        let outcome = verifier.verify_header(Some(&sign(ours, &with(changes.clone()))));
        assert_eq!(
            outcome.as_ref().err().and_then(|error| error.reason_name()),
            expected,
            "{changes}"
        );
        if let Ok(verified) = outcome {
            assert_eq!(verified.principal.name(), "ada@https://idp");
        }
    }
}

#[test]
fn subjects_of_different_issuers_never_meet() {
    let ours = &PAIRS[0].0;
    let verifier = verifier(&ours.public);
    let name = |sub: &str, iss: Value| {
        let verified = verifier
            .verify_header(Some(&sign(ours, &with(json!({"sub": sub, "iss": iss})))))
            .unwrap();
        verified.principal.name().to_owned()
    };
    let names = [
        name("a", json!("b@c")),
        name("a@b", json!("c")),
        name("a@b%40c", json!("")),
        name("a", json!("b%40c")),
        name("a@b", Value::Null),
        name("local", Value::Null),
        Principal::local().name().to_owned(),
    ];
    for (at, one) in names.iter().enumerate() {
        assert!(!names[..at].contains(one), "{one}");
    }
}

#[test]
fn keys_that_do_not_fit_stop_the_start() {
    let refuse = |key: AuthKey| {
        TokenVerifier::new(&AuthSettings { key, audience: None, issuer: None })
            .err()
            .unwrap()
            .reason_name()
            .unwrap()
    };
    assert_eq!(refuse(AuthKey::Secret(Secret::new("fifteen bytes!!"))), "weak_secret");
    let AuthKey::PublicPem(public) = &PAIRS[1].0.public else { panic!("a public key") };
    assert_eq!(refuse(AuthKey::Secret(Secret::new(public.as_bytes()))), "wrong_key");
    let p384 = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap();
    let private = p384.to_pkcs8v1().unwrap();
    let mut off_curve =
        AsDer::<PublicKeyX509Der<'_>>::as_der(p384.public_key()).unwrap().as_ref().to_vec();
    off_curve.truncate(60);
    for text in [
        String::new(),
        "garbage".to_owned(),
        pem("PUBLIC KEY", b"garbage"),
        pem("PUBLIC KEY", &off_curve),
        pem("PRIVATE KEY", private.as_ref()),
        pem("CERTIFICATE", private.as_ref()),
        spki(p384.public_key()),
        format!("{public}{public}"),
    ] {
        assert_eq!(refuse(AuthKey::PublicPem(text.clone())), "wrong_key", "{text}");
    }
    // PKCS#1 form of the same RSA key, as older tools write it.
    let key = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let public = AuthKey::PublicPem(pem("RSA PUBLIC KEY", key.public_key().as_ref()));
    assert!(
        TokenVerifier::new(&AuthSettings { key: public, audience: None, issuer: None }).is_ok()
    );
}

#[test]
fn a_challenge_says_what_was_wrong_only_to_who_sent_a_token() {
    let url = "https://rf/.well-known/oauth-protected-resource/mcp";
    let missing = token_error("missing_token", "this server requires a bearer token");
    assert_eq!(challenge_header(&missing, None), "Bearer realm=\"ringfence\"");
    assert_eq!(
        challenge_header(&missing, Some(url)),
        format!("Bearer realm=\"ringfence\", resource_metadata=\"{url}\"")
    );
    let expired = token_error("expired", "the token has \"expired\"\r\nX: y");
    assert_eq!(
        challenge_header(&expired, None),
        "Bearer realm=\"ringfence\", error=\"invalid_token\", error_description=\"the token has expiredX: y\""
    );
}

#[test]
fn the_metadata_names_the_issuer_and_the_resource() {
    let metadata = protected_resource_metadata("https://idp", "https://rf/mcp");
    assert_eq!(metadata["resource"], "https://rf/mcp");
    assert_eq!(metadata["authorization_servers"], json!(["https://idp"]));
    assert_eq!(metadata["bearer_methods_supported"], json!(["header"]));
}

#[test]
fn times_may_have_fractions_and_say_how_long_a_token_is_valid() {
    let ours = &PAIRS[0].0;
    let verifier = verifier(&ours.public);
    let now = get_current_timestamp() as f64;
    let outcome = |changes: Value| verifier.verify_header(Some(&sign(ours, &with(changes))));
    for exp in [json!(now + 600.5), json!(now - 5.25), json!(1e300), json!(4_102_444_800_u64)] {
        outcome(json!({"exp": exp})).unwrap_or_else(|error| panic!("{exp}: {error}"));
    }
    let left =
        outcome(json!({"exp": now + 600.5, "nbf": now - 0.5})).unwrap().valid_for.as_secs_f64();
    assert!((500.0..=631.0).contains(&left), "{left}");
    for (changes, reason) in [
        (json!({"exp": now - 31.5}), "expired"),
        (json!({"exp": -1.5}), "expired"),
        (json!({"exp": 0}), "expired"),
        (json!({"exp": now + 600.0, "nbf": now + 300.5}), "not_yet_valid"),
        (json!({"exp": "4102444800"}), "malformed_token"),
        (json!({"exp": [4_102_444_800_u64]}), "malformed_token"),
        (json!({"exp": null}), "malformed_token"),
        (json!({"exp": now + 600.0, "nbf": "0"}), "malformed_token"),
    ] {
        let found = outcome(changes.clone()).err().and_then(|error| error.reason_name());
        assert_eq!(found, Some(reason), "{changes}");
    }
}
