use std::sync::Arc;

use super::*;
use crate::base::ids::random_bytes;
use crate::redact::secret::Secret;

fn known(values: &[&[u8]]) -> Arc<KnownSecrets> {
    let names = (b'A'..=b'Z').map(|letter| char::from(letter).to_string());
    Arc::new(
        KnownSecrets::from_values(values.iter().map(|value| value.to_vec()).zip(names).collect())
            .unwrap(),
    )
}

fn sifted(values: &[&[u8]], chunks: &[&[u8]]) -> Vec<u8> {
    let mut sieve = StreamRedactor::from_set(known(values));
    let mut all: Vec<u8> = chunks.iter().flat_map(|chunk| sieve.push(chunk).into_owned()).collect();
    all.extend(sieve.finish());
    all
}

fn text(values: &[&str], chunks: &[&str]) -> String {
    let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
    let chunks: Vec<&[u8]> = chunks.iter().map(|chunk| chunk.as_bytes()).collect();
    String::from_utf8(sifted(&values, &chunks)).unwrap()
}

/// The same said in the plainest way: every place is tried with every value.
fn replaced(values: &[&[u8]], whole: &[u8]) -> Vec<u8> {
    let mut finds = Vec::new();
    for start in 0..whole.len() {
        let mut here: Vec<usize> =
            (0..values.len()).filter(|at| whole[start..].starts_with(values[*at])).collect();
        here.sort_by_key(|at| Reverse(values[*at].len()));
        finds.extend(here.into_iter().map(|value| (start, start + values[value].len(), value)));
    }
    let (mut shown, mut covered, mut last) = (Vec::new(), 0, None);
    for (start, end, value) in finds {
        if end <= covered {
            continue;
        }
        if start >= covered {
            shown.extend_from_slice(&whole[covered..start]);
        }
        if start >= covered || last != Some(value) {
            shown.extend_from_slice(
                format!("[secret:{}]", char::from(b'A' + value as u8)).as_bytes(),
            );
        }
        (covered, last) = (end, Some(value));
    }
    shown.extend_from_slice(&whole[covered..]);
    shown
}

#[test]
fn values_go_wherever_the_pieces_are_cut() {
    let values = ["s3cr3t-value-9"];
    let whole = "x s3cr3t-value-9\ns3cr3t-value-9s3cr3t-value-9 s3cr3t-value-";
    let clean = "x [secret:A]\n[secret:A][secret:A] s3cr3t-value-";
    assert_eq!(text(&values, &[whole]), clean);
    for first in 0..whole.len() {
        for second in first..whole.len() {
            let pieces = [&whole[..first], &whole[first..second], &whole[second..]];
            assert_eq!(text(&values, &pieces), clean, "{first} {second}");
        }
    }
    let single: Vec<String> = whole.chars().map(String::from).collect();
    let single: Vec<&str> = single.iter().map(String::as_str).collect();
    assert_eq!(text(&values, &single), clean);
}

#[test]
fn values_that_overlap_leave_nothing_of_each_other() {
    // Without regard to the second value, its last ten bytes would be shown.
    assert_eq!(
        text(&["password1234", "1234topsecret!"], &["<password12", "34topsecret!>"]),
        "<[secret:A][secret:B]>"
    );
    // One inside another, one the beginning of another, one the end of another.
    assert_eq!(
        text(&["abcdefghijkl", "cdefghij"], &["abcdefghijk", "l abcdefghij"]),
        "[secret:A] ab[secret:B]"
    );
    assert_eq!(
        text(&["abcdefgh", "abcdefghij"], &["abcdefgh", "ij abcdefgh", "i"]),
        "[secret:B] [secret:A]i"
    );
    assert_eq!(text(&["abcdefgh", "efgh"], &["abcdefg", "h efgh"]), "[secret:A] [secret:B]");
    // One that overlaps with itself is one.
    assert_eq!(text(&["aaaaaaaa"], &["b", &"a".repeat(20), &"a".repeat(20), "b"]), "b[secret:A]b");
}

#[test]
fn only_what_could_be_a_beginning_is_held_back() {
    let mut sieve = StreamRedactor::from_set(known(&[b"hunter2!", b"hunter2!hunter3!"]));
    assert_eq!(&*sieve.push(b"a line\nhun"), b"a line\n");
    assert_eq!(&*sieve.push(b"ger\n"), b"hunger\n");
    assert!(matches!(sieve.push(b"nothing of it"), Cow::Borrowed(_)));
    // A longer one may come.
    assert_eq!(&*sieve.push(b"> hunter2!"), b"> ");
    assert_eq!(&*sieve.push(b"x"), b"[secret:A]x");
    // This one is the longest there is: nobody waits for more.
    assert_eq!(&*sieve.push(b"hunter2!hunter3!"), b"[secret:B]");
    assert_eq!(&*sieve.push(b"hunter2!hunt"), b"");
    assert_eq!(sieve.finish(), b"[secret:A]hunt");
    // Its end is the beginning of another.
    let mut sieve = StreamRedactor::from_set(known(&[b"first-value-sec", b"second-value"]));
    assert_eq!(&*sieve.push(b"first-value-sec"), b"[secret:A]");
    assert_eq!(&*sieve.push(b"ond-value."), b"[secret:B].");
}

#[test]
fn a_flood_of_one_value_is_held_in_bounds() {
    let mut sieve = StreamRedactor::from_set(known(&[&[b'a'; 4096]]));
    let mut given = 0;
    for _ in 0..64 {
        given += sieve.push(&[b'a'; 64 << 10]).len();
        assert!(sieve.held_bytes.len() <= 4096 && sieve.matches.len() <= 4096);
    }
    assert_eq!(given, b"[secret:A]".len());
}

#[test]
fn what_is_learnt_in_mid_stream_is_found_from_then_on() {
    let mut sieve = StreamRedactor::new();
    assert_eq!(&*sieve.push(b"sieve-first-value sieve-fir"), b"sieve-first-value sieve-fir");
    crate::redact::known_secrets::register_secrets([("FIRST", &Secret::new("sieve-first-value"))]);
    assert_eq!(&*sieve.push(b"st-value sieve-first-value sieve-"), b"st-value [secret:FIRST] ");
    crate::redact::known_secrets::register_secrets([(
        "SECOND",
        &Secret::new("sieve-second-value"),
    )]);
    assert_eq!(&*sieve.push(b"second-value\n"), b"[secret:SECOND]\n");
    assert_eq!(sieve.finish(), b"");
}

/// Few letters and many values, so that they overlap, nest and begin one another all the time.
#[test]
fn any_chunking_is_as_replacing_in_the_whole() {
    let mut dice = Dice(u64::from_le_bytes(random_bytes()));
    let seed = dice.0;
    for round in 0..4000 {
        let letters: &[u8] = if round % 4 == 0 { &[0, 0x80, 0xff] } else { b"ab" };
        let mut values: Vec<Vec<u8>> = Vec::new();
        for _ in 0..1 + dice.below(6) {
            let value: Vec<u8> = match values.last() {
                // A beginning or an end of the one before, with something more.
                Some(before) if dice.below(3) == 0 => {
                    [&before[before.len() / 2..], &letters[..1]].concat()
                }
                _ => (0..1 + dice.below(9)).map(|_| letters[dice.below(letters.len())]).collect(),
            };
            if !values.contains(&value) {
                values.push(value);
            }
        }
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        let mut whole: Vec<u8> = Vec::new();
        while whole.len() < 60 {
            match dice.below(3) {
                0 => whole.extend_from_slice(values[dice.below(values.len())]),
                _ => whole.push([letters, b"x"].concat()[dice.below(letters.len() + 1)]),
            }
        }
        let mut chunks = Vec::new();
        let mut rest = &whole[..];
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(dice.below(8).min(rest.len()));
            chunks.push(chunk);
            rest = after;
        }
        let wanted = replaced(&values, &whole);
        assert_eq!(
            sifted(&values, &chunks),
            wanted,
            "seed {seed}, round {round}: {values:?} {chunks:?}"
        );
        assert_eq!(sifted(&values, &[&whole]), wanted, "seed {seed}, round {round}, at once");
    }
}

/// xorshift: enough to shake things with.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}
