//! User accounts of this host, from `/etc/passwd` and `/etc/group`.

use std::fs;

use jail::supervisor::RunUser;

use crate::base::{Error, Result};

/// User account, with what a program expects to find in its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserAccount {
    pub name: String,
    pub user: RunUser,
    pub home: String,
    pub shell: String,
}

impl UserAccount {
    /// Looks up the account of this name.
    pub fn from_name(name: &str) -> Result<UserAccount> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        parse_account(name, &read("/etc/passwd"), &read("/etc/group")).ok_or_else(|| {
            Error::invalid_arguments(format!(
                "`escalate_as` names `{name}`, which is not a user of this host"
            ))
            .with_hint("Set `escalate_as` under [policy] to a user in /etc/passwd.")
        })
    }
}

fn parse_account(name: &str, passwd: &str, group: &str) -> Option<UserAccount> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let fields: Vec<&str> = line.split(':').collect();
    let [_, _, uid, gid, _, home, shell] = fields[..] else { return None };
    let gid = gid.parse().ok()?;
    let is_member = |members: &str| members.split(',').any(|member| member == name);
    let mut groups = vec![gid];
    for line in group.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        if let [_, _, id, members] = fields[..]
            && is_member(members)
            && let Ok(id) = id.parse()
            && !groups.contains(&id)
        {
            groups.push(id);
        }
    }
    let user = RunUser { uid: uid.parse().ok()?, gid, groups };
    Some(UserAccount {
        name: name.to_owned(),
        user,
        home: home.to_owned(),
        shell: shell.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_with_all_its_groups() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1001:Ann,,,:/home/ann:/bin/zsh\n";
        let group = "root:x:0:\nann:x:1001:\ndocker:x:998:bob,ann\nadm:x:4:annabel\n";
        let ann = parse_account("ann", passwd, group).unwrap();
        assert_eq!(ann.user, RunUser { uid: 1000, gid: 1001, groups: vec![1001, 998] });
        assert_eq!((ann.home.as_str(), ann.shell.as_str()), ("/home/ann", "/bin/zsh"));
        assert_eq!(parse_account("annabel", passwd, group), None);
    }
}
