use super::*;

fn rights(
    writable: &[&str],
    protected: &[&str],
    hidden: &[&str],
    network: SeatbeltNetwork,
) -> SeatbeltRights {
    let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect();
    SeatbeltRights {
        writable: paths(writable),
        protected: paths(protected),
        hidden: paths(hidden),
        network,
    }
}

fn full() -> SeatbeltRights {
    let proxy = SeatbeltNetwork::Proxy(NonZeroU16::new(8123).unwrap());
    rights(&["/tmp/run", "/Users/me/ws"], &["/Users/me/ws/sub/.git"], &["/Users/me/.ssh"], proxy)
}

#[test]
fn the_whole_of_a_policy() {
    let (text, parameters) = build_policy(&full()).unwrap();
    let added = text.strip_prefix(&policy_section("always")).unwrap();
    assert_eq!(
        added,
        r#"
; The proxy, which decides about every host name.
(allow network-outbound (remote ip "localhost:8123"))

; The writable roots, except what is protected or hidden in them.
(allow file-write*
  (require-all
    (require-any
      (subpath (param "WRITABLE_0"))
      (subpath (param "WRITABLE_1")))
    (require-not (literal (param "PROTECTED_0")))
    (require-not (subpath (param "PROTECTED_0")))
    (require-not (regex (param "PROTECTED_0_SPELLED")))
    (require-not (literal (param "HIDDEN_0")))
    (require-not (subpath (param "HIDDEN_0")))
    (require-not (regex (param "HIDDEN_0_SPELLED")))))

; Directories above or in these rules cannot be moved away or replaced by a link.
(deny file-write-unlink (require-all (literal (param "ANCHOR_0")) (vnode-type DIRECTORY)))
(deny file-write-create (require-all (regex (param "ANCHOR_0_SPELLED")) (vnode-type SYMLINK)))
(deny file-write-unlink (require-all (literal (param "ANCHOR_1")) (vnode-type DIRECTORY)))
(deny file-write-create (require-all (regex (param "ANCHOR_1_SPELLED")) (vnode-type SYMLINK)))
(deny file-write-unlink (require-all (literal (param "ANCHOR_2")) (vnode-type DIRECTORY)))
(deny file-write-create (require-all (regex (param "ANCHOR_2_SPELLED")) (vnode-type SYMLINK)))
(deny file-write-unlink (require-all (literal (param "ANCHOR_3")) (vnode-type DIRECTORY)))
(deny file-write-create (require-all (regex (param "ANCHOR_3_SPELLED")) (vnode-type SYMLINK)))
(deny file-write-unlink (require-all (literal (param "ANCHOR_4")) (vnode-type DIRECTORY)))
(deny file-write-create (require-all (regex (param "ANCHOR_4_SPELLED")) (vnode-type SYMLINK)))
(deny file-write-unlink (require-all (literal (param "ANCHOR_5")) (vnode-type DIRECTORY)))
(deny file-write-create (require-all (regex (param "ANCHOR_5_SPELLED")) (vnode-type SYMLINK)))
(deny file-write-unlink (require-all (literal (param "ANCHOR_6")) (vnode-type DIRECTORY)))
(deny file-write-create (require-all (regex (param "ANCHOR_6_SPELLED")) (vnode-type SYMLINK)))

; Hidden paths: last, so that no rule above reopens them.
(deny file-read*
  (literal (param "HIDDEN_0"))
  (subpath (param "HIDDEN_0"))
  (regex (param "HIDDEN_0_SPELLED")))
(deny file-write*
  (literal (param "HIDDEN_0"))
  (subpath (param "HIDDEN_0"))
  (regex (param "HIDDEN_0_SPELLED")))
(deny process-exec
  (literal (param "HIDDEN_0"))
  (subpath (param "HIDDEN_0"))
  (regex (param "HIDDEN_0_SPELLED")))
"#
    );
    let plain: Vec<(&str, &str)> = parameters
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .filter(|(name, _)| !name.ends_with("D"))
        .collect();
    assert_eq!(
        plain,
        [
            ("HIDDEN_0", "/Users/me/.ssh"),
            ("PROTECTED_0", "/Users/me/ws/sub/.git"),
            ("WRITABLE_0", "/Users/me/ws"),
            ("WRITABLE_1", "/private/tmp/run"),
            ("ANCHOR_0", "/Users"),
            ("ANCHOR_1", "/Users/me"),
            ("ANCHOR_2", "/Users/me/ws"),
            ("ANCHOR_3", "/Users/me/ws/sub"),
            ("ANCHOR_4", "/private"),
            ("ANCHOR_5", "/private/tmp"),
            ("ANCHOR_6", "/private/tmp/run"),
        ]
    );
}

/// Returns the parameters that a policy refers to, in strings only.
fn used(text: &str) -> BTreeSet<String> {
    text.split("(param \"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
}

/// Returns the text without comments and strings, so that all remaining parentheses are syntax.
fn bare(text: &str) -> String {
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with(';'))
        .collect::<Vec<_>>()
        .join("\n");
    code.split('"').step_by(2).collect()
}

fn is_well_formed(text: &str) -> bool {
    let mut depth = 0_i32;
    let sound = bare(text).chars().all(|letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        depth >= 0
    });
    sound && depth == 0
}

const HOSTILE: &str = "/ws/\"))(allow default)\n;\\ (param \"X\") \u{202e}'$HOME #\"^.*\"";

#[test]
fn parameters_and_policy_know_each_other_for_all_rights() {
    let paths: [&[&str]; 3] = [&[], &["/ws"], &["/ws", "/ws/a/b", HOSTILE]];
    let networks =
        [SeatbeltNetwork::Off, SeatbeltNetwork::Proxy(NonZeroU16::MAX), SeatbeltNetwork::All];
    for writable in paths {
        for protected in paths {
            for hidden in paths {
                for network in networks {
                    let (text, parameters) =
                        build_policy(&rights(writable, protected, hidden, network)).unwrap();
                    let names: BTreeSet<String> =
                        parameters.iter().map(|(name, _)| name.clone()).collect();
                    assert_eq!(names.len(), parameters.len(), "a name is given twice");
                    assert_eq!(used(&text), names);
                    assert!(is_well_formed(&text), "{text}");
                }
            }
        }
    }
}

#[test]
fn the_text_does_not_depend_on_what_the_paths_are_called() {
    let hostile = [HOSTILE, "/ws/x"];
    let tame = ["/ws/0", "/ws/x"];
    let of = |path: &[&str]| build_policy(&rights(path, path, path, SeatbeltNetwork::All)).unwrap();
    let ((hostile, parameters), (tame, _)) = (of(&hostile[..1]), of(&tame[..1]));
    assert_eq!(hostile, tame);
    assert!(!hostile.contains("/ws"), "a path of the host stands in the policy");
    let (_, given) = parameters.iter().find(|(name, _)| name == "WRITABLE_0").unwrap();
    assert_eq!(given, HOSTILE);
}

#[test]
fn a_hostile_path_is_one_argument() {
    let hostile = rights(&[HOSTILE], &[], &[], SeatbeltNetwork::Off);
    let (program, args) =
        wrap_command(&hostile, OsStr::new("/bin/echo"), &["-p".into(), "(allow default)".into()])
            .unwrap();
    assert_eq!(program, "/usr/bin/sandbox-exec");
    assert_eq!(args[0], "-p");
    assert!(args.contains(&OsString::from(format!("-DWRITABLE_0={HOSTILE}"))));
    let end = args.iter().position(|arg| arg == "--").unwrap();
    assert_eq!(args[end + 1..], ["/bin/echo", "-p", "(allow default)"]);
    assert!(args[2..end].iter().all(|arg| arg.to_str().is_some_and(|arg| arg.starts_with("-D"))));
}

#[test]
fn the_network_is_what_the_rights_say() {
    let text = |network| bare(&build_policy(&rights(&["/ws"], &[], &[], network)).unwrap().0);
    assert!(
        !text(SeatbeltNetwork::Off).contains("network")
            && !text(SeatbeltNetwork::Off).contains("socket")
    );
    let proxy = text(SeatbeltNetwork::Proxy(NonZeroU16::MIN));
    assert_eq!(proxy.matches("network").count(), 1, "{proxy}");
    assert!(text(SeatbeltNetwork::All).contains("(allow network-outbound)"));
}

#[test]
fn nothing_is_writable_unless_it_is_named() {
    let (text, parameters) = build_policy(&SeatbeltRights::default()).unwrap();
    assert_eq!((text, parameters), (policy_section("always"), Vec::new()));
    let refused = build_policy(&rights(&["/"], &[], &[], SeatbeltNetwork::Off)).unwrap_err();
    assert!(
        refused.to_string().contains("a sandbox cannot make the whole file system writable"),
        "{refused}"
    );
}

#[test]
fn every_rule_of_the_text_has_its_reason() {
    for name in ["always", "network"] {
        let text = policy_section(name);
        assert!(text.starts_with('(') || text.starts_with(';'), "the part {name} is missing");
        let mut explained = true;
        for line in text.lines() {
            match line.chars().next() {
                Some(';') => explained = true,
                None => explained = false,
                _ => assert!(explained || line == "(version 1)", "no reason above {line:?}"),
            }
        }
        assert!(is_well_formed(&text));
    }
}
