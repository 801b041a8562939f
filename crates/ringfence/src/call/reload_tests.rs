use super::*;

#[test]
fn words_for_clients_hold_no_path_of_the_host() {
    for (text, expected) in [
        ("`/etc/rf/key` is not there", "`…` is not there"),
        ("cwd = ~/x/y, and/or (/srv)", "cwd = …, and/or (…)"),
        ("there is no key `a/b` here", "there is no key `a/b` here"),
        ("1 / 2", "1 / 2"),
    ] {
        assert_eq!(without_paths(text), expected);
    }
}
